//! Environment variables and facts about the host.

use rustix::process::{Resource, getrlimit};

/// Returns the value of an environment variable, or `None` if the variable is not set.
///
/// Bytes that are not UTF-8 are replaced, so a parser can refuse the value and show it.
pub fn var(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// Returns the names of the environment variables that are not empty.
pub fn names() -> Vec<String> {
    let set = std::env::vars_os().filter(|(_, value)| !value.is_empty());
    set.map(|(name, _)| name.to_string_lossy().into_owned()).collect()
}

/// Returns this host's name, including its domain if it has one, as `gethostname(2)` does.
pub fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the size of a memory page in bytes, a power of two.
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// Returns how many bytes this process may lock (`ulimit -l`, in bytes), or `None` without a limit.
/// Registering memory with a NIC locks it.
pub fn memlock_limit_bytes() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_is_not_set_is_none() {
        assert_eq!(var("INVAR_NO_SUCH_VARIABLE"), None);
        assert_eq!(var("PATH").as_deref(), std::env::var("PATH").ok().as_deref());
        assert_eq!(
            names().contains(&"PATH".to_owned()),
            var("PATH").is_some_and(|path| !path.is_empty())
        );
    }

    #[test]
    fn the_host_tells_what_proc_tells() {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(hostname(), kernel.trim_end());
        assert!(page_size().is_power_of_two());
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max locked memory")).unwrap();
        let soft = line.split_whitespace().nth(3).unwrap();
        let ours = memlock_limit_bytes().map_or("unlimited".to_owned(), |n| n.to_string());
        assert_eq!(ours, soft);
    }
}
