
pub mod file;
pub mod embedded;
