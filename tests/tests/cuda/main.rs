//! Tests CUDA's driver and GPU memory with stand-ins for the driver and for NICs, and without a driver.

mod budget;
#[cfg(feature = "cust")]
mod cust;
mod direct;
mod driver;
mod hardware;
mod memory;
mod registration;
mod staging;
mod transfer;
