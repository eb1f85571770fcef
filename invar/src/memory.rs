//! Memory that a device may read and write.

use std::ops::Range;
use std::sync::Arc;

use invar_core::nic::Memory;
use invar_linux::memory::HostMemory;

use crate::error::Kind;
use crate::raw::Registration;
use crate::{Device, Error};

/// Page-aligned memory, registered with a device; clones are the same memory.
///
/// Peers and the device change its content at any time, so it is never lent as a slice: it is
/// copied in and out. A comm keeps the regions of its requests until they are done, so a region
/// may be dropped at any time.
///
/// # Who may write to it
///
/// A peer that was told of it, by [`RecvComm::irecv`](crate::RecvComm::irecv), has its key, and a
/// key opens the whole region to every peer that is connected to the device, as long as there is
/// the region. The soft NIC keeps to exactly the region's bytes; hardware protects whole pages,
/// which here are the region's alone.
#[derive(Clone)]
pub struct MemoryRegion(Arc<Inner>);

struct Inner {
    // Ends before the memory and the device.
    _registration: Registration,
    lkey: u32,
    rkey: u32,
    memory: HostMemory,
    device: Device,
}

impl MemoryRegion {
    /// Zeroed memory of `len` bytes, at least one.
    pub fn new(device: &Device, len: usize) -> Result<Self, Error> {
        if len == 0 {
            return Err(Kind::Usage("a memory region needs at least one byte".into()).into());
        }
        let failed = |error| device.failed(error);
        let memory = device.adapter().alloc(len).map_err(failed)?;
        let access = device.data_access();
        let registration = device.adapter().reg_mr(&memory, access).map_err(failed)?;
        Ok(MemoryRegion(Arc::new(Inner {
            lkey: registration.lkey(),
            rkey: registration.rkey(),
            _registration: registration,
            memory,
            device: device.clone(),
        })))
    }

    /// Length in bytes; never 0.
    #[expect(clippy::len_without_is_empty, reason = "there is no empty one")]
    pub fn len(&self) -> usize {
        self.0.memory.len()
    }

    /// Copies bytes out.
    ///
    /// What a receive that is done brought is seen; of what is still coming, each aligned 8-byte
    /// word old or new.
    ///
    /// # Errors
    /// A range that is not within the region.
    #[inline]
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        Ok(self.0.memory.read_at(offset, bytes).map_err(Kind::Range)?)
    }

    /// Copies bytes in. A send that is under way sees them or not.
    ///
    /// # Errors
    /// A range that is not within the region.
    #[inline]
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        Ok(self.0.memory.write_at(offset, bytes).map_err(Kind::Range)?)
    }

    /// The device that it is registered with.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Address and length of a range, for a work request on `device`.
    #[inline]
    pub(crate) fn locate(
        &self,
        device: &Device,
        range: &Range<usize>,
    ) -> Result<(u64, u32), Error> {
        let region_len = self.len();
        let len = range.end.wrapping_sub(range.start);
        if range.start > range.end || range.end > region_len {
            return Err(Kind::Usage(format!("bytes {range:?} of a region of {region_len}")).into());
        }
        let Ok(len) = u32::try_from(len) else {
            return Err(Kind::Usage(format!("{len} bytes are more than a message may have")).into());
        };
        if !self.0.device.is(device) {
            let (ours, theirs) = (&device.info().name, &self.0.device.info().name);
            let text = format!("a region of {theirs} on a connection of {ours}, opened apart");
            return Err(Kind::Usage(text).into());
        }
        Ok((self.0.memory.addr() + range.start as u64, len))
    }

    #[inline]
    pub(crate) fn lkey(&self) -> u32 {
        self.0.lkey
    }

    #[inline]
    pub(crate) fn rkey(&self) -> u32 {
        self.0.rkey
    }
}
