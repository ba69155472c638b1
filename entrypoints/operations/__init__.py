"""Operations of the server: typed requests and a caller go in, typed responses or events come out.

Nothing here imports the web framework. API families translate between these types and their wire
format.
"""
