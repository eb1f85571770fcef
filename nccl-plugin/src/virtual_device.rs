//! Devices that NCCL joins: their ports carry each connection together (`makeVDevice`).

use std::ffi::c_int;

use crate::abi::{Code, VDeviceProps};
use crate::host;
use crate::outcome::{call, misused, null};

/// `makeVDevice` since v9.
pub(crate) unsafe extern "C" fn make_v_device<const DEVS_MAX: usize>(
    device: *mut c_int,
    props: *const VDeviceProps<DEVS_MAX>,
) -> Code {
    call(|| {
        if device.is_null() || props.is_null() {
            return Err(null("makeVDevice: device or devices"));
        }
        // SAFETY: NCCL promises that `props` points to a list of devices.
        let VDeviceProps { ndevs, devs } = unsafe { props.read() };
        let devs = usize::try_from(ndevs).ok().and_then(|ndevs| devs.get(..ndevs));
        let devs = devs.ok_or_else(|| {
            misused(format_args!("makeVDevice: {ndevs} devices; 1 to {DEVS_MAX} can be joined"))
        })?;
        let number = host::get()?.join(devs)?;
        // SAFETY: NCCL promises that `device` has room for a number.
        unsafe { device.write(number) };
        Ok(())
    })
}
