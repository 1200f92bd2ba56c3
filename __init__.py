"""This folder is the package `klear`: `.package/klear` is the link that the name is found by."""
