//! An example of a port: a NIC over two Unix sockets, in the steps in which you would port yours.
//!
//! 1. **Implement [`Nic`].** `nic.rs` does that for [`UnixNic`]. It creates, numbers and destroys what
//!    the verbs name: memory regions, completion queues and queue pairs. Hardware has these already, so
//!    a port to hardware passes the calls on to the driver.
//! 2. **Move bytes.** Hardware does that by itself. `queue_pair.rs` leaves reliability to the core's
//!    engine of RoCEv2 and carries the packets: each queue pair has a socket for requests and one for
//!    acknowledges. GID and queue pair number of a peer lead to its sockets. `domain.rs` has the memory
//!    that work requests may name.
//! 3. **Run the conformance kit.** `tests/conformance.rs` passes two ports to
//!    `invar_testkit::nic_conformance`, which checks every rule that Invar relies on. Begin with the
//!    first check that fails.
//! 4. **Provide the NIC.** [`provide`] brings it to the process. From then on the library lists and
//!    opens it as any other device, and prefers it.
//! 5. **Link the command.** `main.rs` provides the NIC and calls [`invar_cli::run`].
//! 6. **Link the NCCL plugin.** The crate in `plugin` is a shared library that exports NCCL's symbols
//!    and provides the NIC when it is loaded.
#![forbid(unsafe_code)]

mod domain;
mod nic;
mod queue_pair;

use std::net::Ipv4Addr;

use invar::Device;
use invar_core::nic::Nic;

pub use domain::Domain;
pub use nic::{UnixMr, UnixNic, UnixQp};
pub use queue_pair::{CompletionQueue, QueuePair};

/// Brings the NIC to this process, as device `unix0`. Peers connect over loopback.
pub fn provide() {
    invar::provide("unix0", || {
        let nic = UnixNic::open()?;
        let pd = nic.alloc_pd()?;
        Ok(Device::on(nic, pd, Ipv4Addr::LOCALHOST.into())?)
    });
}
