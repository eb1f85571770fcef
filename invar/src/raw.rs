//! The layer below the safe comms: ends of connections that take addresses and keys. Nothing owns the
//! memory behind them.
//!
//! The rest of this crate is safe because its comms own the memory of pending requests. A caller that
//! has only bare pointers, such as a plugin of NCCL, uses the ends in this module instead.
//! [`Connecting::poll_raw`](crate::Connecting::poll_raw) and
//! [`Accepting::poll_raw`](crate::Accepting::poll_raw) make the connections, and [`register`] registers
//! memory.
//!
//! The caller chooses the kind of NIC once, when it opens a device. Each end is the protocol compiled
//! for that kind. [`AnySend`] and [`AnyRecv`] tell the kind, so the caller needs no indirect calls.

mod adapter;
mod boxed;
mod closing;
mod end;
mod hooks;
mod keeper;
mod keeper_end;
mod kind;
mod nic;
mod on;
mod over_tcp;
mod peer;
mod queue_pair;
mod recorded;
mod socket;
mod timed;

pub use crate::device::{Keys, deregister, queue_pair, register, register_gpu};
pub use crate::staged::{HostCopy, gpu_of};
pub(crate) use adapter::{Adapter, Attempt, Listen, Registration, adapt};
pub use end::{CLOSE_MAX, Carrier, End, RecvEnd, SendEnd};
pub use invar_linux::own_thread::OwnThread;
pub use keeper::{Attention, Keeper, KeeperGuard, KeptEnd, Rest, call};
pub use keeper_end::KeeperEnd;
pub(crate) use kind::NicKind;
pub use kind::{AnyRecv, AnySend};
pub use nic::{GpuNic, GpuRange, SharedNic};
pub use on::{On, RecvOn, SendOn};
pub(crate) use over_tcp::OverTcp;
pub use queue_pair::QueuePair;
pub use recorded::{EndState, Snapshot};
pub use socket::{SocketRecv, SocketSend};

// Signatures of this crate mention these types.
pub use invar_core::auth::{AuthError, Session};
pub use invar_core::bias::Bias;
pub use invar_core::comm::{RecvComm as NicRecvComm, SendComm as NicSendComm};
pub use invar_core::conn::stage::{Side, Stage};
pub use invar_core::conn::wire::{PrefaceError, QpInfoError};
pub use invar_core::conn::{QueuePair as NicQueuePair, Stream, StreamError};
pub use invar_core::error::{CompletionError, LineError, RecoveryError, Report};
pub use invar_core::metrics::EndNumbers;
pub use invar_core::nic::NicCounters;
pub use invar_core::peer_clock::PeerClock;
pub use invar_core::recorder::MessageTimes;
pub use invar_core::socket::{HelloError, SocketFrameError};
pub use invar_core::stall::{Cause, EndView, OtherPeer, Process, Role, Verdict, Wait};
pub use invar_cuda::gdr::NicReach;
pub use invar_linux::biased::{Biased, Entered};
pub use invar_linux::interest::Interest;
pub use invar_linux::memory::HostMemory;
pub use invar_linux::rails::Rails;
pub use invar_linux::socket::{RecvComm as SocketRecvComm, SendComm as SocketSendComm};
pub use invar_linux::soft::SoftNic;
pub use invar_linux::tcp::OobStream;
pub use invar_verbs::VerbsNic;

pub use invar_core::comm::{Fast, Flush, FlushBuf, RailStates, RecvBuf, Request, SendBuf, Work};
pub use invar_core::fifo::RECVS_MAX;
