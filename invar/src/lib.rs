//! NCCL's network transport as a library. Connections carry messages between registered memory, by
//! RDMA where the host has an RDMA NIC, and over UDP or TCP where it has none.
//!
//! The receiver opens a [`Device`], and a [`Listener`] on the device makes a [`Handle`]. The program
//! brings the handle's 128 bytes to the sender, which connects and gets a [`SendComm`]. The listener
//! accepts and gets a [`RecvComm`]. Messages go from a [`MemoryRegion`] to a [`MemoryRegion`].
//!
//! Methods named `send`, `recv`, `wait`, `wait_within` and `accept_within` block. So do
//! [`net::wait_for_links`], [`Launch::meet`], [`Communicator::join`], [`Communicator::from_env`], and the
//! operations of a [`Communicator`], except those named `start`. Each of these calls has a deadline. No other
//! call waits for a peer. A call that blocks spins for `INVAR_SPIN_US` and then sleeps.
//!
//! ```
//! use std::time::Duration;
//! use invar::{Device, Listener, MemoryRegion, SendComm, Settings};
//!
//! const MIB: usize = 1 << 20;
//! let timeout = Duration::from_secs(30);
//! let settings = Settings::from_env()?;
//! // The last device of the list is on loopback. `Choice::make` names the best one.
//! let name = Device::list()?.pop().expect("a device").name;
//!
//! let device = Device::open(&name)?;
//! let listener = Listener::bind(&device, &settings)?;
//! // The program brings these 128 bytes to the sender.
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
//! # Futures
//!
//! Methods called `*_async` are futures, and so are [`Connecting`], [`Accepting`] and [`Pending`]. They run on any
//! executor, and each says what happens if it is dropped.
//!
//! # Collectives
//!
//! A [`Communicator`] joins several ranks: it sums, gathers and scatters vectors, and sends messages
//! between any two ranks. [`Communicator::from_env`] joins the ranks that a launcher started: torchrun,
//! Slurm, Open MPI, MPICH, or Kubernetes.
//!
//! # Errors
//!
//! Every function that can fail returns [`Error`]. An error says whose fault it is, which peer,
//! device or rank it is about, whether the connection is lost, and whether it was a timeout. The calls of
//! [`raw`] return the core's error, without these answers.
//!
//! # Ownership of memory
//!
//! A region belongs to its device. No function lends a region as a slice, because peers write to it.
//! A comm keeps the regions of its requests until the requests are done. A comm that is dropped ends
//! its queue pairs first. So safe code can neither free nor alias memory that a NIC works in.
//!
//! # GPU memory
//!
//! [`MemoryRegion::on_gpu`] makes a region of a GPU's memory. Messages from and to GPU memory take
//! the same calls. If the device cannot reach the memory, messages pass through pinned host memory;
//! [`Device::gpu_path`] says why. A comm has `INVAR_STAGING_SLOTS` pieces of pinned memory, of
//! `INVAR_STAGING_CHUNK_BYTES` each. A message longer than one piece is cut. Then both ends must stage,
//! with pieces of one size, and the receive must be as long as the send.
//!
//! # Other NICs
//!
//! A NIC that Invar does not know implements [`nic::Nic`], the only trait between protocol and hardware.
//! [`provide`] adds such a NIC to the process. The NIC is then a device like any other.
//!
//! # Examples
//!
//! The folder `examples` has programs that run on any host: `send_file`, `many_connections`,
//! `all_reduce`, `gpu_memory` and `proxy`, and on tokio `tokio_connections`, `file_server` and `cancel`.

/// The programs of these pages run as tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../README.md")]
    mod front {}
    #[doc = include_str!("../../docs/tutorial-library.md")]
    mod tutorial {}
    #[doc = include_str!("../../docs/launchers.md")]
    mod launchers {}
    #[doc = include_str!("../../docs/await.md")]
    mod waiting {}
}

mod call;
mod choice;
pub mod communicator;
mod connect;
pub mod cuda;
mod device;
mod device_info;
mod error;
mod gpu;
mod hub;
mod launcher;
mod memory;
mod memory_numbers;
mod metrics;
pub mod raw;
mod recorder_place;
mod recv;
mod request;
mod send;
mod settings;
mod spin;
mod staged;
mod stderr_log;
mod wait;

pub use choice::Choice;
pub use communicator::{Communicator, Element, Group, Pending, net};
pub use connect::{Accepting, Connecting, Listener};
pub use device::{Device, WeakDevice, provide};
pub use device_info::{DeviceInfo, DeviceKind, ROCE_UDP_PORT, Survey};
pub use error::Error;
pub use gpu::{GpuPath, GpuSupport, gpus};
pub use half::{bf16, f16};
pub use hub::{Hub, HubListener};
pub use invar_core::auth::{SECRET_BYTES, Secret};
pub use invar_core::coll::{DataType, ParseError, RedOp};
pub use invar_core::conn::wire::DeviceName;
pub use invar_core::conn::{HANDLE_BYTES, Handle, HandleError, PacketAuth, Wire};
pub use invar_core::device::{PciDistance, PciPlace};
pub use invar_core::error::{Ends, Error as ConnectionError, ErrorKind};
pub use invar_core::hex::Hex;
/// The trait that a NIC implements, and its types, for [`Device::on`].
pub use invar_core::nic;
pub use invar_core::nic::{Gid, LinkLayer, Mtu};
pub use invar_core::param::{
    AddressFamily, Allowed, LogFormat, LogLevel, MetricsPlace, NcclDebug, ParamInfo, PortRange,
    Readers, Subnet, TransportChoice,
};
pub use invar_core::rendezvous::{UniqueId, UniqueIdError};
pub use invar_core::stall::FlightRecorder;
pub use invar_linux::rendezvous::secret_of;
pub use launcher::{Launch, Launcher, Meeting};
/// The levels of the crate `log`, for [`LogFilter`].
pub use log::{Level, LevelFilter};
pub use memory::MemoryRegion;
pub use recv::{Flush, Received, RecvComm};
pub use request::Request;
pub use send::SendComm;
pub use settings::{
    InForce, LogFilter, RelaxedOrdering, RoceVersion, Settings, Source, log_subsystem,
};
pub use stderr_log::log_to_stderr;
