//! How connections are made, as the environment and the program say.
//!
//! Every value goes through the parser of [`invar_core::param::TABLE`], from the environment
//! ([`Settings::from_env`]) and from the program ([`set`]) alike. [`effect`] is what they come to.

mod effect;
mod remarks;
mod set;
mod unknown;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use invar_core::conn;
use invar_core::param::{
    AddressFamily, Allowed, LogLevel, ParamInfo, Params, PortRange, TABLE, TransportChoice, Wire,
};
use invar_verbs::GidRules;

use crate::Error;
use crate::error::Kind;
use crate::gpu::GpuRules;
pub use set::{RelaxedOrdering, RoceVersion};

/// How connections are made: from the environment, then as the program says.
///
/// Each end has its own. What the two must agree on they agree on while they connect: the smaller
/// FIFO depth, the connector's number of queue pairs, the options that both allow.
///
/// ```
/// let settings = invar::Settings::from_env()?.qps(4);
/// # Ok::<(), invar::Error>(())
/// ```
///
/// A program sets each variable by a method that names it. A value out of the variable's range is an
/// error of the first call that uses the settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The values that are set, by variable.
    set: BTreeMap<&'static str, (String, Source)>,
    /// Why one of them is refused.
    refused: Option<String>,
    conn: conn::Settings,
    /// `None`: where the device could reach GPUs.
    flush: Option<bool>,
    /// `None`: on InfiniBand.
    adaptive_routing: Option<bool>,
    ar_threshold_bytes: u32,
    transport: TransportChoice,
    log_level: LogLevel,
    pub(crate) rdma: RdmaRules,
    pub(crate) gpu: GpuRules,
    pub(crate) links: LinkRules,
    pub(crate) coll: CollRules,
    /// The device of a communicator, by its name.
    pub(crate) coll_nic: Option<String>,
    pub(crate) socket_ifname: String,
    pub(crate) socket_family: AddressFamily,
    pub(crate) socket_nthreads: Option<u32>,
    pub(crate) nsocks_perthread: Option<u32>,
    socket_congestion: Option<String>,
    soft_ports: PortRange,
    listen_ports: PortRange,
    remarks: Vec<String>,
}

/// What is said about RDMA devices before one is open.
#[derive(Clone, Debug)]
pub(crate) struct RdmaRules {
    /// `NCCL_IB_DISABLE`.
    pub(crate) disabled: bool,
    /// `NCCL_IB_HCA`.
    pub(crate) hca: String,
    pub(crate) gid: GidRules,
    /// `NCCL_IB_PCI_RELAXED_ORDERING`.
    pub(crate) relaxed_ordering: u8,
}

/// What users see of links between ranks.
#[derive(Clone, Debug)]
pub(crate) struct LinkRules {
    /// `NCCL_PROXY_DUMP_SIGNAL`.
    pub(crate) dump_signal: Option<u8>,
    /// `INVAR_PROXY_TRACE`.
    pub(crate) trace: Option<String>,
}

/// How ranks work together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CollRules {
    /// `NCCL_SHM_DISABLE`.
    pub(crate) shm_disable: bool,
    /// `NCCL_CHUNK_SIZE`, where it is set.
    pub(crate) chunk_bytes: Option<u32>,
    /// `INVAR_COLL_TIMEOUT_MS`.
    pub(crate) timeout: Duration,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody has set the variable.
    Default,
    /// The environment.
    Environment,
    /// A call of the program.
    Program,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Default => "default",
            Source::Environment => "environment",
            Source::Program => "program",
        })
    }
}

/// A variable and its value in force.
#[derive(Clone, Debug)]
pub struct InForce {
    /// The variable.
    pub info: &'static ParamInfo,
    /// The value, as a user would write it; a secret is stars.
    pub value: String,
    /// Where the value comes from.
    pub source: Source,
}

impl Settings {
    /// From the environment: each variable of [`invar_core::param::TABLE`]. It logs
    /// [remarks](Self::take_remarks).
    ///
    /// # Errors
    /// A variable that is set to what it cannot be, by name, with what is allowed.
    pub fn from_env() -> Result<Self, Error> {
        let mut settings = Self::from_lookup(invar_linux::env::var)?;
        settings.remarks.extend(unknown::remarks(invar_linux::env::names()));
        remarks::log_once(&settings.remarks);
        Ok(settings)
    }

    /// As [`Settings::from_env`], from elsewhere; `None` is a variable that is not set.
    pub fn from_lookup(
        mut lookup: impl FnMut(&'static str) -> Option<String>,
    ) -> Result<Self, Error> {
        let mut settings = Settings::default();
        for info in TABLE {
            let Some(text) = lookup(info.name).filter(|text| !text.is_empty()) else { continue };
            let text = if info.allowed == Allowed::Secret { "*".repeat(8) } else { text };
            settings.set.insert(info.name, (text, Source::Environment));
        }
        settings.refresh();
        settings.usable()?;
        settings.remarks = remarks::on(settings.conn.wire);
        Ok(settings)
    }

    /// Every variable, in the order of the table, with its value in force.
    pub fn in_force(&self) -> Vec<InForce> {
        let of = |info: &'static ParamInfo| {
            let set = self.set.get(info.name).filter(|(text, _)| !text.is_empty());
            let value = info.in_force(set.map(|(text, _)| text.as_str())).to_owned();
            InForce { info, value, source: set.map_or(Source::Default, |(_, source)| *source) }
        };
        TABLE.iter().map(of).collect()
    }

    /// What a user should hear about these settings, a line each: a wire without authentication,
    /// variables that look like settings and that nobody reads.
    /// The library logs each line as a warning, once a process, when it reads the environment or
    /// makes a connection. A program that takes the lines shows them itself.
    pub fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    /// Refuses settings of which a value is out of range.
    pub(crate) fn usable(&self) -> Result<(), Error> {
        match &self.refused {
            Some(text) => Err(Kind::Setting(text.clone()).into()),
            None => Ok(()),
        }
    }

    /// Sets a variable to what the program says.
    fn with(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.set.insert(name, (value.to_string(), Source::Program));
        self.refresh();
        self
    }

    /// Parses the values that are set. If one is out of range, all stay as they were.
    fn refresh(&mut self) {
        let set = std::mem::take(&mut self.set);
        let text = |name| set.get(name).map(|(text, _)| text.as_str());
        let list = |name| text(name).unwrap_or_default().to_owned();
        let params = Params::from_lookup(text);
        self.refused = params.as_ref().err().map(ToString::to_string);
        if let Ok(params) = params {
            let (ifname, hca) = (list("NCCL_SOCKET_IFNAME"), list("NCCL_IB_HCA"));
            *self = Settings {
                flush: self.flush,
                coll_nic: self.coll_nic.take(),
                remarks: std::mem::take(&mut self.remarks),
                ..Self::of(&params, ifname, hca, self.conn)
            };
        }
        self.set = set;
    }

    /// From the variables; `program` has what only a program can say of a connection.
    fn of(
        params: &Params<'_>,
        socket_ifname: String,
        hca: String,
        program: conn::Settings,
    ) -> Self {
        Settings {
            conn: conn_settings(params, program),
            flush: None,
            adaptive_routing: params.ib_adaptive_routing,
            ar_threshold_bytes: u32::try_from(params.ib_ar_threshold).unwrap_or(u32::MAX),
            transport: params.transport,
            log_level: params.log,
            rdma: RdmaRules {
                disabled: params.ib_disable,
                hca,
                gid: GidRules::from(params),
                relaxed_ordering: params.ib_pci_relaxed_ordering,
            },
            gpu: GpuRules::from(params),
            links: LinkRules {
                dump_signal: params.proxy_dump_signal,
                trace: params.proxy_trace.map(str::to_owned),
            },
            coll: CollRules {
                shm_disable: params.shm_disable,
                chunk_bytes: Some(params.chunk_bytes).filter(|bytes| *bytes > 0),
                timeout: Duration::from_millis(params.coll_timeout_ms.into()),
            },
            coll_nic: None,
            socket_ifname,
            socket_family: params.socket_family,
            socket_nthreads: params.socket_nthreads,
            nsocks_perthread: params.nsocks_perthread,
            socket_congestion: params.socket_congestion.map(str::to_owned),
            soft_ports: params.soft_port,
            listen_ports: params.port_range,
            remarks: Vec::new(),
            set: BTreeMap::new(),
            refused: None,
        }
    }
}

/// Those of a connection; `program` has what no variable says.
fn conn_settings(params: &Params<'_>, program: conn::Settings) -> conn::Settings {
    conn::Settings {
        wire: match params.wire {
            Wire::Invar => conn::Wire::Invar,
            Wire::Nccl214 => conn::Wire::Nccl214,
        },
        fifo_depth: params.fifo_depth,
        qps: u16::from(params.ib_qps_per_connection),
        pkey_index: params.ib_pkey_index,
        sl: params.ib_sl,
        traffic_class: params.ib_tc,
        timeout: params.ib_timeout,
        retry_cnt: params.ib_retry_cnt,
        use_inline: params.ib_use_inline,
        ece: params.ib_ece_enable,
        long_mtu: params.long_mtu,
        packet_auth: match params.soft_auth {
            None => conn::PacketAuth::Network,
            Some(false) => conn::PacketAuth::Off,
            Some(true) => conn::PacketAuth::Always,
        },
        timeout_ns: u64::from(params.connect_timeout_ms) * 1_000_000,
        ..program
    }
}

/// What holds where the environment says nothing.
impl Default for Settings {
    fn default() -> Self {
        let conn = conn::Settings::default();
        Self::of(&Params::default(), String::new(), String::new(), conn)
    }
}

#[cfg(test)]
mod tests;
