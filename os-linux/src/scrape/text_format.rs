//! Prometheus' older text format.

/// Rewrites OpenMetrics text in Prometheus' older text format, the only one that node_exporter's textfile collector
/// reads. There a counter's family has the name of its samples, and neither units nor an end are marked.
pub(super) fn text_format(open_metrics: &str) -> String {
    let is_counter = |name: &str| open_metrics.contains(&format!("# TYPE {name} counter\n"));
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "UNIT", ..] | ["#", "EOF"] => continue,
            ["#", what, name, rest] if is_counter(name) => {
                text.push_str(&format!("# {what} {name}_total {rest}"));
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_counters_under_the_names_of_their_samples() {
        let open_metrics = "# HELP a_bytes Sent.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\n\
            a_bytes_total{x=\"# y\"} 1\n# HELP b Open.\n# TYPE b gauge\nb 2\n# EOF\n";
        let text = "# HELP a_bytes_total Sent.\n# TYPE a_bytes_total counter\na_bytes_total{x=\"# y\"} 1\n\
            # HELP b Open.\n# TYPE b gauge\nb 2\n";
        assert_eq!(text_format(open_metrics), text);
    }
}
