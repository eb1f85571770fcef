//! Connecting: from a handle to two comms with queue pairs in RTS.
//!
//! Read in this order: [`Handle`] names a listener. [`wire`] has the messages that the two ends
//! exchange over TCP. [`stage`] is the state machine of both ends. [`Connector`] and [`Acceptor`] drive
//! this machine over a [`Stream`] and a [`Nic`](crate::nic::Nic), and can resume at any byte.
//!
//! ```text
//! connector  Start → Connect → Authenticate → Send → Connecting → PendingReady → Connected
//!                    TCP up    proofs          info→  ←info, RTR, RTS  ready→
//! acceptor   Start → Accept → Recv → Send → PendingReady → Connected
//!                    TCP up   ←info, RTR, RTS  info→   ←ready
//! ```
//!
//! The listener starts an acceptor only after the caller has proved that it knows the secret
//! ([`crate::auth`]).
//!
//! On the wire of NCCL 2.14 each end is Connected once its info is sent. The rest happens in the first
//! `isend` and `irecv` (`net_ib.cc ncclSendCheck`, `ncclRecvCheck`).

mod accept;
mod attempt;
mod connect;
mod exchange;
mod handle;
mod link;
mod queue_pair;
mod rails;
mod ready;
mod renewable;
mod settings;
pub mod stage;
mod stream;
pub mod wire;

pub use accept::Acceptor;
pub(crate) use attempt::Parts;
pub use connect::Connector;
pub(crate) use exchange::Exchange;
pub use handle::{HANDLE_BYTES, HANDLE_SECRET_BYTES, Handle, HandleError};
pub(crate) use link::{FENCE, PROBE, Peer, Verbs};
pub use queue_pair::{QUEUE_PAIR_INFO_BYTES, QueuePair};
pub use rails::{RAILS_MAX, on_rail};
pub(crate) use rails::{RailSet, rail_of, wire_qpn};
pub(crate) use ready::{is_ready, start_with_acceptor};
pub(crate) use renewable::{RenewableStream, StreamNews};
pub use settings::{CommSettings, PacketAuth, QPS_MAX, Wire};
pub use stream::{AwaitedStream, Stream, StreamError};
