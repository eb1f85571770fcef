//! The building blocks for tests of Invar and of NICs that are ported to it.

pub mod bench;
pub mod child;
pub mod conformance;
pub mod fake_cuda;
pub mod insider;
pub mod interop;
pub mod library;
pub mod load;
pub mod namespaces;
pub mod pcap;
pub mod shell;
pub mod skip;
pub mod sleepers;
pub mod strangers;
pub mod sysfs;
pub mod tcp_times;
pub mod unused;
pub mod warnings;

pub use conformance::nic_conformance;
pub use invar_simulator::{duo, end, model, null, pattern, pipe, random, sim};
pub use invar_test_wait as wait;
