//! NCCL's network transport as a library: connections that carry messages between registered
//! memory, by RDMA, on whatever NIC the host has.
//!
//! A [`Device`] is opened, a [`Listener`] on it makes a [`Handle`], and whoever gets the handle's
//! bytes connects: it has a [`SendComm`] then, and the listener's side a [`RecvComm`]. Messages go
//! between [`MemoryRegion`]s. Nothing blocks but what is called `wait`, `send` or `recv`, and each
//! of those has a deadline.
//!
//! ```
//! use std::time::Duration;
//! use invar::{Device, Listener, MemoryRegion, SendComm, Settings};
//!
//! const MIB: usize = 1 << 20;
//! let timeout = Duration::from_secs(30);
//! let settings = Settings::from_env()?;
//! // On loopback, which is the last device; mostly there is a better one.
//! let name = Device::list()?.pop().expect("a device").name;
//!
//! let device = Device::open(&name)?;
//! let listener = Listener::bind(&device, &settings)?;
//! // 128 bytes, which get to the sender in some way of the program's own.
//! let handle = listener.handle();
//!
//! let sender = std::thread::spawn({
//!     let settings = settings.clone();
//!     move || -> Result<(), invar::Error> {
//!         let device = Device::open(&name)?;
//!         let mut comm = SendComm::connect(&device, &handle, &settings)?.wait()?;
//!         let region = MemoryRegion::new(&device, MIB)?;
//!         let bytes: Vec<u8> = (0..MIB).map(|i| i as u8).collect();
//!         region.write_at(0, &bytes)?;
//!         comm.send(&region, 0..MIB, 7, timeout)?;
//!         Ok(())
//!     }
//! });
//!
//! let mut comm = listener.accept_within(timeout)?;
//! let region = MemoryRegion::new(&device, MIB)?;
//! let received = comm.recv(&region, 0..MIB, 7, timeout)?;
//! assert_eq!(received, MIB);
//! let mut bytes = vec![0; MIB];
//! region.read_at(0, &mut bytes)?;
//! assert!(bytes.iter().enumerate().all(|(i, byte)| *byte == i as u8));
//! sender.join().unwrap()?;
//! # Ok::<(), invar::Error>(())
//! ```
//!
//! # Whose memory
//!
//! A region belongs to its device, and is never lent as a slice, for peers write to it. A comm
//! keeps the regions of its requests until they are done or it is dropped itself, which ends its
//! queue pairs first; so safe code can neither free nor alias memory that a NIC is at work in.
//!
//! # GPU memory
//!
//! A region may be a GPU's ([`MemoryRegion::on_gpu`]); messages from and to it take the same calls.
//! Where the device does not reach it ([`Device::gpu_path`] says why), they pass through pinned
//! host memory, of which a comm has `INVAR_STAGING_SLOTS` pieces of `INVAR_STAGING_CHUNK_BYTES`.
//! One that is longer than a piece is cut, and each piece is a message: there both ends must have
//! memory that is staged, the same size of pieces, and the same length.

mod choice;
pub mod communicator;
mod connect;
pub mod cuda;
mod device;
mod error;
mod gpu;
mod hub;
mod memory;
pub mod raw;
mod recv;
mod request;
mod send;
mod settings;
mod staged;
mod wait;

pub use choice::Choice;
pub use communicator::{Communicator, Element, Group, Pending, net};
pub use connect::{Accepting, Connecting, Listener};
pub use device::{Device, DeviceInfo, DeviceKind, ROCE_UDP_PORT, Survey, WeakDevice};
pub use error::Error;
pub use gpu::{GpuPath, GpuSupport, gpus};
pub use half::{bf16, f16};
pub use hub::Hub;
pub use invar_core::auth::{SECRET_BYTES, Secret};
pub use invar_core::coll::{DataType, ParseError, RedOp};
pub use invar_core::conn::wire::DeviceName;
pub use invar_core::conn::{HANDLE_BYTES, Handle, HandleError, PacketAuth, Wire};
pub use invar_core::device::PciDistance;
pub use invar_core::error::{Ends, Error as ConnectionError, ErrorKind};
/// The trait that a NIC implements, and its types, for [`Device::on`].
pub use invar_core::nic;
pub use invar_core::nic::{Gid, LinkLayer, Mtu};
pub use invar_core::param::{
    AddressFamily, LogLevel, ParamInfo, PortRange, Subnet, TransportChoice,
};
pub use invar_core::rendezvous::{UniqueId, UniqueIdError};
pub use invar_linux::rendezvous::secret_of;
pub use memory::MemoryRegion;
pub use recv::{Flush, Received, RecvComm};
pub use request::Request;
pub use send::SendComm;
pub use settings::{InForce, RelaxedOrdering, RoceVersion, Settings, Source};
