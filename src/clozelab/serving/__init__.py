"""The local web app: models to play with, masks to look at, runs to watch. It only reads."""
