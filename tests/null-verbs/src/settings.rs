//! The settings of the null libibverbs, read from the environment.

use std::env;
use std::ffi::c_int;
use std::fs::OpenOptions;
use std::io::Write;
use std::str::FromStr;

use crate::fatal;

pub(crate) struct Settings {
    pub(crate) devices: usize,
    pub(crate) is_infiniband: bool,
    pub(crate) mbps: u64,
    pub(crate) active_speed_ex: u32,
    pub(crate) delay_polls: u32,
    pub(crate) is_strict: bool,
    /// Whether DMA-BUFs can be registered, or the error of the attempt.
    pub(crate) dma_buf: Result<(), c_int>,
    pub(crate) peermem: bool,
    calls: Option<String>,
    /// The pipes of the devices' events lie in this directory.
    pub(crate) events: Option<String>,
}

impl Settings {
    pub(crate) fn from_env() -> Self {
        Settings {
            devices: number("NULL_VERBS_DEVICES", 1, 64) as usize,
            is_infiniband: match text("NULL_VERBS_LINK").as_deref() {
                None | Some("roce") => false,
                Some("ib") => true,
                Some(other) => fatal(&format!("NULL_VERBS_LINK={other}: must be roce or ib")),
            },
            mbps: number("NULL_VERBS_MBPS", 200_000, u64::MAX),
            active_speed_ex: number("NULL_VERBS_ACTIVE_SPEED_EX", 0, u32::MAX.into()) as u32,
            delay_polls: number("NULL_VERBS_DELAY_POLLS", 0, u32::MAX.into()) as u32,
            is_strict: number("NULL_VERBS_STRICT", 0, 1) == 1,
            dma_buf: match text("NULL_VERBS_DMA_BUF").as_deref() {
                Some("yes") => Ok(()),
                None | Some("EOPNOTSUPP") => Err(libc::EOPNOTSUPP),
                Some("EPROTONOSUPPORT") => Err(libc::EPROTONOSUPPORT),
                Some(other) => fatal(&format!(
                    "NULL_VERBS_DMA_BUF={other}: must be yes, EOPNOTSUPP or EPROTONOSUPPORT"
                )),
            },
            peermem: number("NULL_VERBS_PEERMEM", 0, 1) == 1,
            calls: text("NULL_VERBS_CALLS"),
            events: text("NULL_VERBS_EVENTS"),
        }
    }

    /// Appends a call to the file of calls, if there is one.
    pub(crate) fn note(&self, call: impl FnOnce() -> String) {
        let Some(path) = &self.calls else { return };
        let file = OpenOptions::new().append(true).create(true).open(path);
        let noted = file.and_then(|mut file| file.write_all((call() + "\n").as_bytes()));
        if let Err(error) = noted {
            fatal(&format!("NULL_VERBS_CALLS={path}: {error}"));
        }
    }
}

fn number(name: &str, default: u64, max: u64) -> u64 {
    let Some(text) = text(name) else { return default };
    match u64::from_str(&text) {
        Ok(number) if number <= max => number,
        _ => fatal(&format!("{name}={text}: must be a number of at most {max}")),
    }
}

fn text(name: &str) -> Option<String> {
    env::var_os(name).map(|text| text.to_string_lossy().into_owned())
}
