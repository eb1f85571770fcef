//! Division of sizes: steps and chunks of a point-to-point transfer, and the share of each queue pair.

mod p2p;
mod qp_split;

pub use p2p::{P2pSteps, P2pTransfer, Protocol, STEPS};
pub use qp_split::{QP_SPLIT_ALIGN, QpPart, QpSplit};
