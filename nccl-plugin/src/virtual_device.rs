//! Devices that NCCL joins: their ports carry each connection together (`makeVDevice`).

use std::ffi::c_int;
use std::sync::atomic::AtomicUsize;

use crate::abi::{Code, VDeviceProps};
use crate::host::{self, Host};
use crate::outcome::{Outcome, call, misused, null};

/// `makeVDevice` since v9.
pub(crate) unsafe extern "C" fn make_v_device<const DEVS_MAX: usize>(
    device: *mut c_int,
    props: *const VDeviceProps<DEVS_MAX>,
) -> Code {
    call(|| {
        let host = host::get()?;
        // SAFETY: The caller upholds NCCL's contract of `makeVDevice`.
        unsafe { join(device, props, &host, &host.shown) }
    })
}

/// `makeVDevice` of collNet since v9. NCCL joins the same devices for the network, and gets the same ones.
pub(crate) unsafe extern "C" fn make_v_device_of_collnet<const DEVS_MAX: usize>(
    device: *mut c_int,
    props: *const VDeviceProps<DEVS_MAX>,
) -> Code {
    call(|| {
        let host = host::with_collnet()?;
        // SAFETY: The caller upholds NCCL's contract of `makeVDevice`.
        unsafe { join(device, props, &host, &host.shown_by_collnet) }
    })
}

/// Joins the listed devices, and writes the number of the device that they make.
///
/// # Safety
/// The caller upholds NCCL's contract of `makeVDevice`.
unsafe fn join<const DEVS_MAX: usize>(
    device: *mut c_int,
    props: *const VDeviceProps<DEVS_MAX>,
    host: &Host,
    shown: &AtomicUsize,
) -> Outcome {
    if device.is_null() || props.is_null() {
        return Err(null("makeVDevice: device or devices"));
    }
    // SAFETY: NCCL promises that `props` points to a list of devices.
    let VDeviceProps { ndevs, devs } = unsafe { props.read() };
    let devs = usize::try_from(ndevs).ok().and_then(|ndevs| devs.get(..ndevs));
    let devs = devs.ok_or_else(|| {
        misused(format_args!("makeVDevice: {ndevs} devices; 1 to {DEVS_MAX} can be joined"))
    })?;
    let number = host.join(devs, shown)?;
    // SAFETY: NCCL promises that `device` has room for a number.
    unsafe { device.write(number) };
    Ok(())
}
