//! Settings of connections, from the environment and from the program.
//!
//! Every value goes through the parser of [`invar_core::param::TABLE`], whether it comes from the
//! environment ([`Settings::from_env`]) or from the program ([`set`]). [`effect`] derives the settings
//! of a connection from these values.

mod effect;
mod gpu;
mod log_filter;
mod remarks;
mod set;
mod unknown;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use invar_core::conn;
use invar_core::param::{
    AddressFamily, Allowed, LogFormat, LogLevel, NcclDebug, ParamInfo, Params, PortRange, TABLE,
    TransportChoice, Wire,
};
use invar_core::stall::{Process, ProcessWait, StallSettings};
use invar_linux::env::hostname;
use invar_verbs::GidRules;

use crate::Error;
use crate::error::Kind;
use crate::metrics;
pub(crate) use effect::tcp_silence;
pub(crate) use gpu::{GpuRules, StagingSize};
pub use log_filter::{LogFilter, log_subsystem};
pub use set::{RelaxedOrdering, RoceVersion};

/// The longest wait of this process, for the peers that wait for it.
static PROCESS_WAIT: ProcessWait = ProcessWait::new();

/// The settings of connections. The environment gives the values; the program may override them.
///
/// Each end of a connection has its own settings. While the ends connect, they agree on common values:
/// the smaller FIFO depth, the connector's number of queue pairs, and the options that both allow.
///
/// ```
/// let settings = invar::Settings::from_env()?.qps(4);
/// # Ok::<(), invar::Error>(())
/// ```
///
/// A program sets each variable by a method that names it. If a value is out of range, the first call
/// that uses the settings fails.
#[derive(Clone, Debug)]
#[must_use]
pub struct Settings {
    /// The values that are set, by variable.
    set: BTreeMap<&'static str, SetValue>,
    /// The reason why a value is refused.
    refused: Option<String>,
    conn: conn::CommSettings,
    /// Whether to flush; `None` means that connections flush if the device could reach GPUs.
    flush: Option<bool>,
    /// Whether the network routes adaptively; `None` means that InfiniBand does.
    adaptive_routing: Option<bool>,
    ar_threshold_bytes: u32,
    transport: TransportChoice,
    log_level: LogLevel,
    log_format: LogFormat,
    /// Value of `NCCL_DEBUG_SUBSYS`.
    log_subsystems: String,
    pub(crate) rdma: RdmaRules,
    pub(crate) gpu: GpuRules,
    pub(crate) links: LinkRules,
    pub(crate) coll: CollRules,
    spin: Duration,
    /// Whether the program may sleep while it waits.
    pub(crate) sleeps: bool,
    collnet: bool,
    merge_nics: bool,
    /// The name of a communicator's device.
    pub(crate) coll_nic: Option<String>,
    pub(crate) socket_ifname: String,
    /// Value of `NCCL_COMM_ID`.
    comm_id: String,
    pub(crate) socket_family: AddressFamily,
    pub(crate) socket_nthreads: Option<u32>,
    pub(crate) nsocks_perthread: Option<u32>,
    socket_congestion: Option<String>,
    /// Value of `INVAR_RAILS`.
    pub(crate) rails: String,
    /// Value of `INVAR_SOFT_DEVICES`.
    pub(crate) soft_devices: String,
    soft_ports: PortRange,
    listen_ports: PortRange,
    /// Value of `INVAR_METRICS`.
    metrics: Option<metrics::Shown>,
    remarks: Vec<String>,
}

/// A value that is set. It may be a secret, so that only its source is shown.
#[derive(Clone)]
struct SetValue {
    text: String,
    source: Source,
}

impl std::fmt::Debug for SetValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.source.fmt(f)
    }
}

/// Settings of RDMA devices that are needed before a device is open.
#[derive(Clone, Debug)]
pub(crate) struct RdmaRules {
    /// Value of `NCCL_IB_DISABLE`.
    pub(crate) disabled: bool,
    /// Value of `NCCL_IB_HCA`.
    pub(crate) hca: String,
    pub(crate) gid: GidRules,
    /// Value of `NCCL_IB_MERGE_VFS`.
    pub(crate) merge_vfs: bool,
    /// Value of `NCCL_IB_PCI_RELAXED_ORDERING`.
    pub(crate) relaxed_ordering: u8,
}

/// Settings of links between ranks, and of proxies.
#[derive(Clone, Debug)]
pub(crate) struct LinkRules {
    /// Value of `NCCL_PROXY_DUMP_SIGNAL`.
    pub(crate) dump_signal: Option<u8>,
    /// Value of `INVAR_PROXY_TRACE`.
    pub(crate) trace: Option<String>,
    /// Value of `NCCL_PROXY_APPEND_BATCH_SIZE`.
    append_batch: u32,
    /// Value of `NCCL_PROGRESS_APPENDOP_FREQ`.
    append_every: u32,
}

/// Settings of communicators.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CollRules {
    /// Value of `NCCL_SHM_DISABLE`.
    pub(crate) shm_disable: bool,
    /// Value of `NCCL_CHUNK_SIZE`, if it is set.
    pub(crate) chunk_bytes: Option<u32>,
    /// Value of `INVAR_COLL_TIMEOUT_MS`.
    pub(crate) timeout: Duration,
}

/// Settings that both ends of a connection keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndSettings {
    pub(crate) staging: StagingSize,
    /// How long a wait spins at most.
    pub(crate) spin: Duration,
}

/// The source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The variable is not set.
    Default,
    /// The value comes from the environment.
    Environment,
    /// The value comes from a call of the program.
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
    /// The row of the variable in the table of all variables.
    pub info: &'static ParamInfo,
    /// The value, as a user would write it; a secret is shown as stars.
    pub value: String,
    /// Where the value comes from.
    pub source: Source,
}

impl Settings {
    /// Reads the settings from the environment: each variable of [`invar_core::param::TABLE`]. Logs the
    /// [remarks](Self::take_remarks).
    ///
    /// # Errors
    /// Fails if a variable has an invalid value. The error names the variable and the allowed values.
    pub fn from_env() -> Result<Self, Error> {
        let lookup = |name: &str| invar_linux::env::var(name);
        let settings = Self::from_named(lookup, invar_linux::env::names())?;
        settings.log_remarks();
        Ok(settings)
    }

    /// Reads the settings like [`Settings::from_env`], but from `vars`, and logs nothing. The
    /// [remarks](Self::take_remarks) are about these variables.
    ///
    /// # Errors
    /// Fails as [`Settings::from_env`] does.
    pub fn from_vars(vars: &BTreeMap<String, String>) -> Result<Self, Error> {
        let set = vars.iter().filter(|(_, value)| !value.is_empty());
        Self::from_named(|name| vars.get(name).cloned(), set.map(|(name, _)| name.clone()))
    }

    /// Reads the settings from `lookup`, and remarks on `names`, the variables that are not empty.
    fn from_named(
        lookup: impl FnMut(&'static str) -> Option<String>,
        names: impl IntoIterator<Item = String>,
    ) -> Result<Self, Error> {
        let mut settings = Self::from_lookup(lookup)?;
        settings.remarks.extend(unknown::remarks(names));
        Ok(settings)
    }

    /// Reads the settings like [`Settings::from_env`], but from `lookup`, which returns `None` for a
    /// variable that is not set. Remarks on no unknown names.
    ///
    /// # Errors
    /// Fails as [`Settings::from_env`] does.
    pub fn from_lookup(
        mut lookup: impl FnMut(&'static str) -> Option<String>,
    ) -> Result<Self, Error> {
        let mut settings = Settings::default();
        for info in TABLE {
            let Some(text) = lookup(info.name).filter(|text| !text.is_empty()) else { continue };
            settings.set.insert(info.name, SetValue { text, source: Source::Environment });
        }
        settings.refresh();
        settings.usable()?;
        settings.remarks = remarks::on(settings.conn.wire);
        Ok(settings)
    }

    /// Returns every variable, in the order of the table, with its value in force. A secret is hidden.
    pub fn in_force(&self) -> Vec<InForce> {
        let of = |info: &'static ParamInfo| {
            let set = self.set.get(info.name).filter(|set| !set.text.is_empty());
            let hidden = "*".repeat(8);
            let text = set.map(|set| match info.allowed {
                Allowed::Secret => &hidden,
                _ => &set.text,
            });
            let value = info.in_force(text.map(String::as_str)).to_owned();
            InForce { info, value, source: set.map_or(Source::Default, |set| set.source) }
        };
        TABLE.iter().map(of).collect()
    }

    /// Returns the warnings about these settings, one line each. A warning names a wire without
    /// authentication, or a variable that looks like a setting and that nobody reads.
    ///
    /// The library logs each line as a warning, once a process, when it reads the environment, begins
    /// [to log to stderr](crate::log_to_stderr), or makes a connection. A program that takes the lines shows
    /// them itself.
    pub fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    /// Logs the remarks that this process has not logged yet, if a logger shows warnings.
    pub(crate) fn log_remarks(&self) {
        remarks::log_once(&self.remarks);
    }

    /// Returns the settings that both ends of a connection keep.
    pub(crate) fn of_end(&self) -> EndSettings {
        EndSettings { staging: self.gpu.staging, spin: self.spin }
    }

    /// Returns the value of `INVAR_COLL_SECRET`, if it is set.
    pub(crate) fn secret_of_ranks(&self) -> Option<&str> {
        let set = self.set.get("INVAR_COLL_SECRET").map(|set| set.text.as_str());
        set.filter(|text| !text.is_empty())
    }

    /// Returns the time in which a connection recovers.
    pub(crate) fn recovers_within(&self) -> Duration {
        Duration::from_nanos(self.conn.recovery_timeout_ns)
    }

    /// Returns how connections and communicators look for stalls.
    pub(crate) fn stall(&self) -> StallSettings {
        self.conn.stall
    }

    /// Returns an error if a value is out of range.
    pub(crate) fn usable(&self) -> Result<(), Error> {
        match &self.refused {
            Some(text) => Err(Kind::Setting(text.clone()).into()),
            None => Ok(()),
        }
    }

    /// Sets a variable to the program's value.
    fn with(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.set.insert(name, SetValue { text: value.to_string(), source: Source::Program });
        self.refresh();
        self
    }

    /// Parses the values that are set. If one value is out of range, all settings stay as they were.
    fn refresh(&mut self) {
        let set = std::mem::take(&mut self.set);
        let text = |name| set.get(name).map(|set| set.text.as_str());
        let list = |name| text(name).unwrap_or_default().to_owned();
        let params = Params::from_lookup(text);
        self.refused = params.as_ref().err().map(ToString::to_string);
        if let Ok(params) = params {
            let (ifname, hca) = (list("NCCL_SOCKET_IFNAME"), list("NCCL_IB_HCA"));
            *self = Settings {
                flush: self.flush,
                sleeps: self.sleeps,
                coll_nic: self.coll_nic.take(),
                remarks: std::mem::take(&mut self.remarks),
                ..Self::of(&params, ifname, hca, self.conn)
            };
        }
        self.set = set;
    }

    /// Creates settings from the variables. `program` has the settings of a connection that only a
    /// program can set.
    fn of(
        params: &Params<'_>,
        socket_ifname: String,
        hca: String,
        program: conn::CommSettings,
    ) -> Self {
        Settings {
            conn: conn_settings(params, program),
            flush: None,
            adaptive_routing: params.ib_adaptive_routing,
            ar_threshold_bytes: u32::try_from(params.ib_ar_threshold).unwrap_or(u32::MAX),
            transport: params.transport,
            log_level: params
                .log
                .or(params.nccl_debug.map(NcclDebug::level))
                .unwrap_or(LogLevel::Warn),
            log_format: params.log_format,
            log_subsystems: params.nccl_debug_subsys.unwrap_or_default().to_owned(),
            rdma: RdmaRules {
                disabled: params.ib_disable,
                hca,
                gid: GidRules::from(params),
                merge_vfs: params.ib_merge_vfs,
                relaxed_ordering: params.ib_pci_relaxed_ordering,
            },
            gpu: GpuRules::from(params),
            links: LinkRules {
                dump_signal: params.proxy_dump_signal,
                trace: params.proxy_trace.map(str::to_owned),
                append_batch: params.proxy_append_batch,
                append_every: params.progress_appendop_freq,
            },
            coll: CollRules {
                shm_disable: params.shm_disable,
                chunk_bytes: Some(params.chunk_bytes).filter(|bytes| *bytes > 0),
                timeout: Duration::from_millis(params.coll_timeout_ms.into()),
            },
            spin: Duration::from_micros(params.spin_us.into()),
            sleeps: true,
            collnet: params.collnet_enable,
            merge_nics: params.ib_merge_nics,
            coll_nic: None,
            socket_ifname,
            comm_id: params.comm_id.unwrap_or_default().to_owned(),
            socket_family: params.socket_family,
            socket_nthreads: params.socket_nthreads,
            nsocks_perthread: params.nsocks_perthread,
            socket_congestion: params.socket_congestion.map(str::to_owned),
            rails: params.rails.unwrap_or_default().to_owned(),
            soft_devices: params.soft_devices.unwrap_or_default().to_owned(),
            soft_ports: params.soft_port,
            listen_ports: params.port_range,
            metrics: params.metrics.map(metrics::Shown::from),
            remarks: Vec::new(),
            set: BTreeMap::new(),
            refused: None,
        }
    }
}

/// Creates the settings of a connection. `program` has the settings that no variable sets.
fn conn_settings(params: &Params<'_>, program: conn::CommSettings) -> conn::CommSettings {
    conn::CommSettings {
        wire: match params.wire {
            Wire::Invar => conn::Wire::Invar,
            Wire::Nccl214 => conn::Wire::Nccl214,
        },
        fifo_depth: params.fifo_depth,
        qps: u16::from(params.ib_qps_per_connection),
        pkey_index: params.ib_pkey_index,
        sl: params.ib_sl.unwrap_or_default(),
        traffic_class: params.ib_tc.unwrap_or_default(),
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
        recovery_timeout_ns: u64::from(params.recovery_timeout_ms) * 1_000_000,
        suspect_after_ns: u64::from(params.suspect_after_ms) * 1_000_000,
        stall: StallSettings {
            after_ns: u64::from(params.stall_ms) * 1_000_000,
            process: Process::new(std::process::id(), &hostname()),
            recorder: params.recorder,
            process_wait: Some(&PROCESS_WAIT),
            ..program.stall
        },
        ..program
    }
}

/// The settings if the environment sets no variable.
impl Default for Settings {
    fn default() -> Self {
        let conn = conn::CommSettings::default();
        Self::of(&Params::default(), String::new(), String::new(), conn)
    }
}

#[cfg(test)]
mod tests;
