//! Drumlin beside its peers: programs under `examples/` that run both in the same place and print what each does. They
//! need a C compiler, which the library does not: so they live in a crate of their own, outside the default members.
