//! Memory planning for tensor programs.
