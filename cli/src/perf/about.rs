//! The version, the clock and the settings of an end. `invar doctor --peer` compares those of both ends.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use invar::{Settings, Source};
use serde::{Deserialize, Serialize};

use crate::failure::line;

/// The settings that two ends should share. Others belong to a host, as the names of its devices do.
const SHARED: [&str; 18] = [
    "INVAR_FIFO_DEPTH",
    "INVAR_LONG_MTU",
    "INVAR_RECOVERY_TIMEOUT_MS",
    "INVAR_SOFT_AUTH",
    "INVAR_STALL_MS",
    "INVAR_TRANSPORT",
    "INVAR_WIRE",
    "NCCL_IB_ADAPTIVE_ROUTING",
    "NCCL_IB_ADDR_FAMILY",
    "NCCL_IB_AR_THRESHOLD",
    "NCCL_IB_ECE_ENABLE",
    "NCCL_IB_QPS_PER_CONNECTION",
    "NCCL_IB_RETRY_CNT",
    "NCCL_IB_ROCE_VERSION_NUM",
    "NCCL_IB_SL",
    "NCCL_IB_TC",
    "NCCL_IB_TIMEOUT",
    "NCCL_SOCKET_FAMILY",
];

/// One end: its version, its clock and its settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    /// The version of Invar.
    pub(crate) version: String,
    /// The time in microseconds since 1970, when this was written.
    pub(crate) clock_us: u64,
    /// The settings among [`SHARED`] that the environment gives, by name.
    pub(crate) settings: BTreeMap<String, String>,
}

impl About {
    /// This end, now.
    pub(crate) fn here(settings: &Settings) -> Self {
        let rows = settings.in_force().into_iter();
        let rows = rows.filter(|row| row.source != Source::Default);
        let rows = rows.filter(|row| SHARED.contains(&row.info.name));
        About {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            clock_us: now_us(),
            settings: rows.map(|row| (row.info.name.to_owned(), row.value)).collect(),
        }
    }

    /// Returns this value with only known settings and without control characters. The peer may be anybody, and
    /// its words go to a terminal.
    pub(super) fn made_harmless(self) -> Self {
        let settings = self.settings.into_iter();
        let settings = settings.filter(|(name, _)| SHARED.contains(&name.as_str()));
        About {
            version: line(&self.version),
            settings: settings.map(|(name, value)| (name, line(&value))).collect(),
            ..self
        }
    }
}

/// The time in microseconds since 1970.
pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shared_setting_is_one() {
        let all = Settings::default().in_force();
        for name in SHARED {
            assert!(all.iter().any(|row| row.info.name == name), "{name}");
        }
    }
}
