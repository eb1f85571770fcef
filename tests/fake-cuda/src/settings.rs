//! The settings of the stand-in, read from the environment.

use std::collections::HashMap;
use std::env;
use std::fs::OpenOptions;
use std::io::Write;

use crate::Code;

pub(crate) struct Settings {
    pub(crate) gpus: Vec<String>,
    attributes: HashMap<i32, Option<i32>>,
    fail: HashMap<String, Code>,
    pub(crate) is_managed: bool,
    /// The length of a mapping, if allocations are reservations of mappings.
    pub(crate) mapping: Option<u64>,
    pub(crate) has_old_pointers: bool,
    pub(crate) is_gpudirect: bool,
    pub(crate) queries: u32,
    pub(crate) captures: bool,
    calls: Option<String>,
}

/// The attributes of a GPU of compute capability 8.0 that is below no NIC. Its driver has every
/// feature.
const ATTRIBUTES: [(i32, i32); 6] = [(75, 8), (76, 0), (116, 1), (117, 0), (118, 0), (124, 1)];

impl Settings {
    pub(crate) fn from_env() -> Self {
        let list = |name: &str| env::var(name).unwrap_or_default();
        let is_on = |name: &str| env::var(name).is_ok_and(|set| set == "1");
        let gpus = env::var("FAKE_CUDA_GPUS").unwrap_or("0000:3D:00.0".to_owned());
        let mut attributes: HashMap<_, _> =
            ATTRIBUTES.map(|(number, value)| (number, Some(value))).into();
        for (number, value) in pairs(&list("FAKE_CUDA_ATTRIBUTES")) {
            let number = number.parse().expect("FAKE_CUDA_ATTRIBUTES: a number");
            attributes.insert(number, value.parse().ok());
        }
        Settings {
            gpus: gpus.split(',').filter(|gpu| !gpu.is_empty()).map(str::to_owned).collect(),
            attributes,
            fail: pairs(&list("FAKE_CUDA_FAIL"))
                .map(|(name, code)| (name.to_owned(), code.parse().expect("a code")))
                .collect(),
            is_managed: is_on("FAKE_CUDA_MANAGED"),
            mapping: env::var("FAKE_CUDA_MAPPING").ok().map(|n| n.parse().expect("a number")),
            has_old_pointers: is_on("FAKE_CUDA_OLD_POINTERS"),
            is_gpudirect: !env::var("FAKE_CUDA_GPUDIRECT").is_ok_and(|set| set == "0"),
            queries: env::var("FAKE_CUDA_QUERIES").map_or(1, |n| n.parse().expect("a number")),
            captures: is_on("FAKE_CUDA_CAPTURES"),
            calls: env::var("FAKE_CUDA_CALLS").ok(),
        }
    }

    pub(crate) fn attribute(&self, number: i32) -> Option<i32> {
        self.attributes.get(&number).copied().flatten()
    }

    /// Notes a call. Returns an error if the settings make this function fail.
    pub(crate) fn called(&self, function: &str) -> Result<(), Code> {
        self.note(function);
        self.fail.get(function).map_or(Ok(()), |code| Err(*code))
    }

    /// Appends a line to the file of calls.
    pub(crate) fn note(&self, line: &str) {
        if let Some(path) = &self.calls {
            let file = OpenOptions::new().append(true).create(true).open(path);
            file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
                .expect("FAKE_CUDA_CALLS: a file to write to");
        }
    }
}

fn pairs(list: &str) -> impl Iterator<Item = (&str, &str)> {
    list.split(',').filter_map(|pair| pair.split_once('='))
}
