"""Files and folders of labelled data → examples."""
