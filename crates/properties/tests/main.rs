//! The properties, asked of a few inputs each: seeds of the fuzz targets, what fuzzing found, and random changes of both.

mod random;
mod smoke;
