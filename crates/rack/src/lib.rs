
pub mod file;
