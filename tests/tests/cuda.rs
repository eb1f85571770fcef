//! CUDA's driver and GPU memory, with a stand-in for the driver and without one.

mod cuda {
    #[cfg(feature = "cust")]
    mod cust;
    mod driver;
    mod hardware;
    mod memory;
    mod registration;
    mod staging;
    mod transfer;
}
