//! Slurm's lists of hosts, as in `gpu[001-016,020],login`.

/// The first host of a list; `None` if the text is no list of hosts.
pub(super) fn first(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    while !rest.is_empty() && !rest.starts_with(',') {
        match rest.find(['[', ',']) {
            Some(at) if rest[at..].starts_with('[') => {
                let (ranges, after) = rest[at + 1..].split_once(']')?;
                // The numbers of a range keep their leading zeros.
                let number = ranges.split([',', '-']).next()?;
                if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
                    return None;
                }
                host += &rest[..at];
                host += number;
                rest = after;
            }
            Some(at) => {
                host += &rest[..at];
                rest = &rest[at..];
            }
            None => {
                host += rest;
                rest = "";
            }
        }
    }
    if host.is_empty() || host.contains(']') { None } else { Some(host) }
}

#[cfg(test)]
mod tests {
    use super::first;

    #[test]
    fn the_first_host_of_a_list_is_found() {
        for (list, host) in [
            ("node1", "node1"),
            ("node1,node2", "node1"),
            ("gpu[001-016,020],login", "gpu001"),
            ("gpu[7,9]", "gpu7"),
            ("rack[2-3]n[01-08].example.org", "rack2n01.example.org"),
            ("10.0.0.[1-2]", "10.0.0.1"),
        ] {
            assert_eq!(first(list).as_deref(), Some(host), "{list}");
        }
    }

    #[test]
    fn a_text_that_is_no_list_has_no_first_host() {
        for list in ["", ",", "gpu[", "gpu[]", "gpu[a-b]", "gpu]", "a[1-2"] {
            assert_eq!(first(list), None, "{list}");
        }
    }
}
