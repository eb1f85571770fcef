//! The NICs that the program brings to its process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Device;
use crate::error::Kind;
use crate::{DeviceInfo, Error};

type OpenError = Box<dyn std::error::Error + Send + Sync>;
type Open = dyn Fn() -> Result<Device, OpenError> + Send + Sync;

/// A NIC by name, and the function that opens it.
type Provided = (String, Arc<Open>);

static PROVIDED: Mutex<Vec<Provided>> = Mutex::new(Vec::new());

/// Brings a NIC to this process, beside the devices that Invar knows itself. From then on
/// [`Device::survey`] lists the NIC first, [`Device::open`] opens it by `name`, and every user of the
/// library in this process can take it: [`Communicator`](crate::Communicator), the command and the NCCL
/// plugin.
///
/// Provided NICs are [`DeviceKind::Custom`](crate::DeviceKind::Custom). With `INVAR_TRANSPORT=auto` they
/// go before all other devices, since nobody provides a NIC that is not to be used.
/// `INVAR_TRANSPORT=custom` takes no other devices.
///
/// `open` makes the device, usually by [`Device::on`]. Its NIC calls itself `name`. The library calls
/// `open` for each survey and each time that a device is opened. A NIC that cannot be opened is in
/// [`Survey::left_out`](crate::Survey::left_out). A second NIC of one name takes the place of the first.
///
/// ```
/// use invar::nic::Nic;
/// use invar::raw::SoftNic;
/// use invar::{Device, Settings};
/// use invar_linux::soft::SoftConfig;
///
/// // A port has a NIC of its own in place of this one.
/// invar::provide("mine0", || {
///     let address = "127.0.0.1:0".parse()?;
///     let nic = SoftNic::open(&SoftConfig::new("mine0", address))?;
///     let pd = nic.alloc_pd()?;
///     Ok(Device::on(nic, pd, address.ip())?)
/// });
/// assert_eq!(Device::survey(&Settings::default())?.devices[0].name, "mine0");
/// # Ok::<(), invar::Error>(())
/// ```
pub fn provide(name: &str, open: impl Fn() -> Result<Device, OpenError> + Send + Sync + 'static) {
    let mut provided = lock();
    provided.retain(|(known, _)| known != name);
    provided.push((name.to_owned(), Arc::new(open)));
}

/// Describes the provided NICs, or says why one cannot be opened.
pub(crate) fn survey() -> impl Iterator<Item = Result<DeviceInfo, Error>> {
    let provided = lock().clone();
    provided.into_iter().map(|provided| Ok(open_one(&provided)?.info().clone()))
}

/// Opens the provided NIC of a name, if there is one.
pub(crate) fn open(name: &str) -> Option<Result<Device, Error>> {
    let found = lock().iter().find(|(known, _)| known == name).cloned();
    found.map(|provided| open_one(&provided))
}

fn open_one((name, open): &Provided) -> Result<Device, Error> {
    let failed = |source| Kind::Provided { name: name.clone(), source };
    let device = open().map_err(failed)?;
    match device.info().name == *name {
        true => Ok(device),
        false => Err(failed(format!("the NIC calls itself {}", device.info().name).into()).into()),
    }
}

fn lock() -> MutexGuard<'static, Vec<Provided>> {
    PROVIDED.lock().unwrap_or_else(PoisonError::into_inner)
}
