//! Parameters whose value is one of a few words.

use core::net::IpAddr;

use super::value::{Allowed, Value};
use crate::device::PciDistance;

macro_rules! choice {
    (
        $(#[$attr:meta])*
        $name:ident { $($(#[$variant_attr:meta])* $variant:ident = $word:literal,)+ }
    ) => {
        $(#[$attr])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$variant_attr])* $variant,)+ }

        impl $name {
            pub(super) const ALLOWED: Allowed = Allowed::OneOf(&[$($word),+]);

            /// The word that stands for it.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)+ }
            }
        }

        impl Value<'_> for $name {
            fn from_text(text: &str, _: &Allowed) -> Option<Self> {
                match text { $($word => Some($name::$variant),)+ _ => None }
            }
        }
    };
}

choice! {
    /// The handshake of two ends.
    Wire {
        /// Begins with a preface that says versions, depths and features.
        Invar = "invar",
        /// The handshake of NCCL 2.14.3's IB transport.
        Nccl214 = "nccl-2.14",
    }
}

choice! {
    /// Families of IP addresses.
    AddressFamily {
        /// An interface may have either family.
        Any = "any",
        /// An interface needs an IPv4 address.
        Inet = "AF_INET",
        /// An interface needs an IPv6 address.
        Inet6 = "AF_INET6",
    }
}

impl AddressFamily {
    /// Whether an address belongs to this family.
    pub const fn takes(self, ip: IpAddr) -> bool {
        match self {
            AddressFamily::Any => true,
            AddressFamily::Inet => ip.is_ipv4(),
            AddressFamily::Inet6 => ip.is_ipv6(),
        }
    }
}

choice! {
    /// Transports, and the choice between them.
    TransportChoice {
        /// The first that the host has, in an order that depends on the program.
        Auto = "auto",
        /// IB verbs on an RDMA device.
        Ib = "ib",
        /// The socket transport, over TCP.
        Socket = "socket",
        /// The software RoCEv2 NIC.
        Soft = "soft",
        /// A NIC that the program brings.
        Custom = "custom",
    }
}

choice! {
    /// How much is logged. Each level includes the levels before it.
    LogLevel {
        /// Nothing is logged.
        Off = "off",
        /// Failures are logged.
        Error = "error",
        /// Things that may go wrong.
        Warn = "warn",
        /// Choices, with their reasons.
        Info = "info",
        /// Each step of a setup.
        Debug = "debug",
        /// The finest details are logged, too.
        Trace = "trace",
    }
}

choice! {
    /// How a line of the log looks.
    LogFormat {
        /// A line is a sentence.
        Text = "text",
        /// A JSON object.
        Json = "json",
    }
}

/// How far apart GPU and NIC may be. NCCL has numbers for the levels too, from when it had no names, and names of
/// paths between GPUs.
pub(super) const GDR_LEVELS: Allowed = Allowed::OneOf(&[
    "LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "0", "1", "2", "3", "4",
    "5",
]);

impl Value<'_> for PciDistance {
    fn from_text(text: &str, _: &Allowed) -> Option<Self> {
        Some(match text {
            // A path to a NIC is never one of NVLink.
            "LOC" | "NVL" | "NVB" | "C2C" | "0" => PciDistance::Loc,
            "PIX" | "1" => PciDistance::Pix,
            "PXB" | "P2C" | "PXN" | "2" => PciDistance::Pxb,
            "PHB" | "3" => PciDistance::Phb,
            "SYS" | "4" | "5" => PciDistance::Sys,
            _ => return None,
        })
    }
}
