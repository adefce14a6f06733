"""The local web app, to try models, view masks and watch runs. It only reads."""
