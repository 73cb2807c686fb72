//! All integration tests of `eval` in one binary.

mod ageing;
mod figures;
mod nice;
mod nice_shapes;
mod rack_ageing;
mod shapes;
mod transport;
