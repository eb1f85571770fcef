//! Comms: the two ends of an established connection.
//!
//! A [`RecvComm`] posts receives. Each receive is one request for up to eight buffers. The comm posts a
//! receive work request on each queue pair and writes a row of FIFO slots to the peer. A [`SendComm`]
//! matches each send by tag against those rows and writes the data directly into the receiver's buffer.
//! Both return a [`Request`], and `test` says when the request is done (`net_ib.cc ncclIbIsend`,
//! `ncclIbIrecv`, `ncclIbTest`).

mod arm;
mod base;
mod both;
mod closing;
mod control;
mod fast;
mod flush;
mod gone;
mod group;
mod line;
mod look;
mod post;
mod rail_care;
mod rail_shares;
mod rails;
mod recover;
mod recovery;
mod recv;
mod route;
mod row_keys;
mod send;
mod send_buf;
mod sizes;
mod turns;
mod work;

pub use closing::Closing;
pub use fast::Fast;
pub use flush::{Flush, FlushBuf};
pub use rails::RailStates;
pub use recovery::RecoveryStage;
pub use recv::{RecvBuf, RecvComm};
pub use send::SendComm;
pub use send_buf::SendBuf;
pub use work::Work;

pub(crate) use post::pieces_max;
pub(crate) use row_keys::{KEYS_BYTES, control_bytes};

pub use crate::request::Request;
