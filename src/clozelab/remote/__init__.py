"""Files and folders at URLs, by fsspec: reading, fetching into a cache, and writing."""
