//! The layer below: ends of connections that take addresses and keys, without an owner for the
//! memory behind them.
//!
//! The rest of this crate is safe because its comms keep the memory of what is under way. Who is
//! handed bare pointers anyway, as a plugin of NCCL is, finds here what they are built on: a
//! connection comes about by [`Connecting::poll_raw`](crate::Connecting::poll_raw) and
//! [`Accepting::poll_raw`](crate::Accepting::poll_raw), memory is registered by [`register`].
//!
//! A kind of NIC is chosen once, where a device is opened. Each end is the protocol compiled for
//! that kind; [`AnySend`] and [`AnyRecv`] tell which it is, so that a caller can go on without an
//! indirect call.

mod adapter;
mod end;
mod registration;
mod socket;
mod watch;

pub(crate) use adapter::{Adapter, Attempt, Listen, Registration, adapt, adapt_in};
pub use adapter::{HostNic, On, RecvOn, SendOn};
pub use end::{AnyRecv, AnySend, CLOSE_MAX, Carrier, End, RecvEnd, SendEnd};
pub(crate) use registration::Registrations;
pub use registration::{GpuRange, Keys, deregister, register, register_gpu};
pub(crate) use socket::OverTcp;
pub use socket::{SocketRecv, SocketSend};

// The types that signatures of this crate mention.
pub use invar_core::auth::AuthError;
pub use invar_core::comm::{RecvComm as NicRecvComm, SendComm as NicSendComm};
pub use invar_core::conn::stage::{Side, Stage};
pub use invar_core::conn::wire::{PrefaceError, QpInfoError};
pub use invar_core::conn::{Stream, StreamError};
pub use invar_core::error::{CompletionError, Report};
pub use invar_core::socket::{FrameError, HelloError};
pub use invar_cuda::gdr::NicReach;
pub use invar_linux::memory::HostMemory;
pub use invar_linux::socket::{RecvComm as SocketRecvComm, SendComm as SocketSendComm};
pub use invar_linux::soft::SoftNic;
pub use invar_linux::tcp::OobStream;
pub use invar_verbs::VerbsNic;

pub use invar_core::comm::{Fast, Flush, FlushBuf, RecvBuf, Request, SendBuf, Work};
pub use invar_core::fifo::RECVS_MAX;
