//! The building blocks for tests of Invar and of NICs that are ported to it.

pub mod bench;
pub mod child;
pub mod conformance;
pub mod duo;
pub mod end;
pub mod fake_cuda;
pub mod insider;
pub mod interop;
pub mod library;
pub mod model;
pub mod namespaces;
pub mod null;
pub mod pattern;
pub mod pcap;
pub mod pipe;
pub mod random;
pub mod shell;
pub mod sim;
pub mod sleepers;
pub mod strangers;
pub mod sysfs;
pub mod tcp_times;
pub mod unused;
pub mod wait;
pub mod warnings;

pub use conformance::nic_conformance;
