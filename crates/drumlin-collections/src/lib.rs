//! Typed documents on [Drumlin](drumlin), by its public face alone.
//!
//! - [`encoding`]: keys as bytes that sort like the values they encode. Usable without the rest.
#![deny(missing_docs)]

pub mod encoding;
