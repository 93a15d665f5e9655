//! Nothing: the examples of this package are what it is for.
