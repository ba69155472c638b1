"""Sources: what turns a reference into local files. A path that exists is asked about first."""
