//! The binding as programs in C, C++ and Go use it.

mod header;
mod hosts;
mod programs;
