"""The processes of a training stage: what each is asked, its rank, and the files it writes."""
