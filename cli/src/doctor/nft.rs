//! The rules of nftables, and the packets that they surely drop.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde_json::Value;

/// The kernel follows no longer chain of jumps.
const JUMPS_MAX: u32 = 16;
/// The most rules that are looked at for one answer.
const RULES_MAX: u32 = 1 << 20;
/// The protocols above IP whose names begin an expression such as `udp dport`.
const PROTOCOLS: [&str; 10] =
    ["tcp", "udp", "udplite", "sctp", "dccp", "icmp", "icmpv6", "igmp", "esp", "ah"];

/// Packets between this host and others. Each is the first of its flow.
pub(crate) struct Packets {
    /// `udp` or `tcp`.
    pub(crate) protocol: &'static str,
    pub(crate) is_ipv6: bool,
    /// The ports that they go to.
    pub(crate) ports: RangeInclusive<u16>,
}

/// A chain that drops packets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dropping {
    /// Family, table and name of the chain at the hook, as `inet filter input`.
    pub(crate) chain: String,
    /// The rule or the policy that drops them.
    pub(crate) by: String,
}

/// All rules of a network namespace.
pub(crate) struct Ruleset(BTreeMap<ChainId, Chain>);

/// Family, table and name.
type ChainId = [String; 3];

#[derive(Default)]
struct Chain {
    /// Where the kernel enters a filter chain; empty for chains that others jump to, and those of NAT.
    hook: String,
    drops_by_policy: bool,
    /// The handles of the rules and their statements.
    rules: Vec<(u64, Vec<Value>)>,
}

/// The end of packets in a chain.
enum Fate {
    /// They are dropped by a rule, which the text names.
    Dropped(String),
    Accepted,
    /// It depends on facts that are not known.
    Unsure,
    /// They go on in the chain before, or to the policy.
    Returned,
}

/// A property of the packets.
enum Field {
    Word(&'static str),
    Ports,
    Interface,
    /// Packets of this kind do not have it, so that no rule about it applies.
    Absent,
    Unknown,
}

impl Ruleset {
    /// Reads the output of `nft -j list ruleset`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let json: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let entries = json["nftables"].as_array().ok_or("it lists no rules")?;
        let mut chains: BTreeMap<ChainId, Chain> = BTreeMap::new();
        let id =
            |entry: &Value, name: &str| [&entry["family"], &entry["table"], &entry[name]].map(word);
        for entry in entries {
            if let Some(entry) = entry.get("chain") {
                let chain = chains.entry(id(entry, "name")).or_default();
                if entry["type"] == "filter" {
                    chain.hook = word(&entry["hook"]);
                    chain.drops_by_policy = entry["policy"] == "drop";
                }
            } else if let Some(entry) = entry.get("rule") {
                let statements = entry["expr"].as_array().cloned().unwrap_or_default();
                let handle = entry["handle"].as_u64().unwrap_or_default();
                chains.entry(id(entry, "chain")).or_default().rules.push((handle, statements));
            }
        }
        Ok(Ruleset(chains))
    }

    /// Finds a chain at a hook that drops all these packets for sure. A rule counts only if it matches
    /// every such packet, whatever the packet's address or mark.
    pub(crate) fn dropping(&self, hook: &str, packets: &Packets) -> Option<Dropping> {
        let family = if packets.is_ipv6 { "ip6" } else { "ip" };
        let walk = Walk { rules: self, packets, left: Cell::new(RULES_MAX) };
        self.0.iter().find_map(|(id, chain)| {
            if chain.hook != hook || !(id[0] == "inet" || id[0] == family) {
                return None;
            }
            let by = match walk.fate(id, JUMPS_MAX) {
                Fate::Dropped(by) => by,
                Fate::Returned if chain.drops_by_policy => {
                    "its policy is drop, and no rule accepts them".to_owned()
                }
                _ => return None,
            };
            Some(Dropping { chain: id.join(" "), by })
        })
    }
}

/// The way of packets through the chains.
struct Walk<'a> {
    rules: &'a Ruleset,
    packets: &'a Packets,
    /// How many more rules may be looked at.
    left: Cell<u32>,
}

impl Walk<'_> {
    fn fate(&self, id: &ChainId, jumps_left: u32) -> Fate {
        let Some(chain) = self.rules.0.get(id).filter(|_| jumps_left > 0) else {
            return Fate::Unsure;
        };
        for (handle, statements) in &chain.rules {
            if self.left.get() == 0 {
                return Fate::Unsure;
            }
            self.left.set(self.left.get() - 1);
            let rule = format!("its rule with handle {handle} drops them");
            let rule = if chain.hook.is_empty() {
                format!("it jumps to {}, and there {rule}", id[2])
            } else {
                rule
            };
            if let Some(fate) = self.rule(statements, &rule, id, jumps_left) {
                return fate;
            }
        }
        Fate::Returned
    }

    /// The end of the packets by a rule; `None` if they go on to the next one.
    fn rule(&self, statements: &[Value], name: &str, id: &ChainId, jumps: u32) -> Option<Fate> {
        let mut is_sure = true;
        let statements =
            statements.iter().filter_map(|statement| statement.as_object()?.iter().next());
        for (kind, body) in statements {
            let holds = match kind.as_str() {
                "match" => self.holds(body),
                "counter" | "log" | "comment" => Some(true),
                "accept" | "drop" | "reject" | "return" | "continue" | "jump" | "goto"
                | "queue" => {
                    return self.verdict(kind, body, is_sure, (name, id, jumps));
                }
                "vmap" => {
                    // The entries of a map that has a name are not looked up.
                    let Some(entries) = body["data"]["set"].as_array() else {
                        return Some(Fate::Unsure);
                    };
                    for entry in entries {
                        let is_it = self.has(&self.field(&body["key"]), &entry[0]);
                        let verdict =
                            entry[1].as_object().and_then(|verdict| verdict.iter().next());
                        let (Some((kind, body)), true) = (verdict, is_it != Some(false)) else {
                            continue;
                        };
                        let is_sure = is_sure && is_it == Some(true);
                        let fate = self.verdict(kind, body, is_sure, (name, id, jumps));
                        if fate.is_some() {
                            return fate;
                        }
                    }
                    Some(false)
                }
                _ => None,
            };
            match holds {
                Some(true) => {}
                Some(false) => return None,
                None => is_sure = false,
            }
        }
        None
    }

    /// The end of packets by a verdict that is surely, or perhaps, given.
    fn verdict(
        &self,
        kind: &str,
        body: &Value,
        is_sure: bool,
        (name, id, jumps): (&str, &ChainId, u32),
    ) -> Option<Fate> {
        let fate = match kind {
            "continue" => return None,
            "accept" => Fate::Accepted,
            "drop" | "reject" => Fate::Dropped(name.to_owned()),
            "return" => Fate::Returned,
            "jump" | "goto" => {
                let [family, table, _] = id.clone();
                match self.fate(&[family, table, word(&body["target"])], jumps - 1) {
                    Fate::Returned if kind == "jump" => return None,
                    fate => fate,
                }
            }
            _ => Fate::Unsure,
        };
        match fate {
            fate if is_sure => Some(fate),
            Fate::Dropped(_) => None,
            _ => Some(Fate::Unsure),
        }
    }

    /// Whether a comparison holds for all packets (`true`) or for none.
    fn holds(&self, comparison: &Value) -> Option<bool> {
        let field = self.field(&comparison["left"]);
        if matches!(field, Field::Absent) {
            return Some(false);
        }
        let right = &comparison["right"];
        let range = |first: u64, last: u64| {
            self.has(&field, &serde_json::json!({ "range": [first, last] }))
        };
        match (comparison["op"].as_str()?, right.as_u64()) {
            ("==" | "in", _) => self.has(&field, right),
            ("!=", _) => self.has(&field, right).map(|has| !has),
            ("<", Some(port)) => range(0, port.checked_sub(1)?),
            ("<=", Some(port)) => range(0, port),
            (">", Some(port)) => range(port.saturating_add(1), u16::MAX.into()),
            (">=", Some(port)) => range(port, u16::MAX.into()),
            _ => None,
        }
    }

    fn field(&self, expression: &Value) -> Field {
        let Packets { protocol, is_ipv6, .. } = *self.packets;
        let (ours, other) = if is_ipv6 { ("ip6", "ip") } else { ("ip", "ip6") };
        let text = |kind: &str, key: &str| expression[kind][key].as_str().unwrap_or_default();
        match (text("payload", "protocol"), text("payload", "field")) {
            ("", _) => {}
            (of, _) if of == other => return Field::Absent,
            (of, "protocol" | "nexthdr") if of == ours => return Field::Word(protocol),
            (of, _) if of != protocol && PROTOCOLS.contains(&of) => return Field::Absent,
            (of, "dport") if of == protocol || of == "th" => return Field::Ports,
            _ => return Field::Unknown,
        }
        match (text("meta", "key"), text("ct", "key")) {
            ("l4proto", _) => Field::Word(protocol),
            ("nfproto", _) => Field::Word(if is_ipv6 { "ipv6" } else { "ipv4" }),
            ("protocol", _) => Field::Word(ours),
            ("iif" | "iifname" | "oif" | "oifname", _) => Field::Interface,
            (_, "state") => Field::Word("new"),
            _ => Field::Unknown,
        }
    }

    /// Whether a value, or a set, has the property of all packets (`true`) or of none.
    fn has(&self, field: &Field, value: &Value) -> Option<bool> {
        if let Some(values) = value.as_array().or_else(|| value["set"].as_array()) {
            let each = values.iter().map(|value| self.has(field, value));
            let all: Vec<Option<bool>> = each.collect();
            return match all.contains(&Some(true)) {
                true => Some(true),
                false => (!all.contains(&None)).then_some(false),
            };
        }
        match field {
            Field::Ports => {
                let bound = |at: usize| value["range"][at].as_u64().or(value.as_u64());
                let (first, last) = (bound(0)?, bound(1)?);
                let ports = &self.packets.ports;
                let (lowest, highest) = (u64::from(*ports.start()), u64::from(*ports.end()));
                match first <= lowest && highest <= last {
                    true => Some(true),
                    false => (last < lowest || highest < first).then_some(false),
                }
            }
            Field::Word(word) => {
                value.as_str().filter(|value| !value.starts_with('@')).map(|value| value == *word)
            }
            Field::Interface => (value == "lo").then_some(false),
            Field::Absent => Some(false),
            Field::Unknown => None,
        }
    }
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A rule whose statements are those given and then a verdict.
    fn rule(chain: &str, statements: &[Value], verdict: &str) -> Value {
        let verdict = match verdict.split_once(' ') {
            Some((kind, target)) => json!({ kind: { "target": target } }),
            None => json!({ verdict: null }),
        };
        let expr = [statements, &[verdict]].concat();
        json!({ "rule": { "family": "inet", "table": "t", "chain": chain, "handle": 7, "expr": expr } })
    }

    fn is(op: &str, left: &Value, right: Value) -> Value {
        json!({ "match": { "op": op, "left": left, "right": right } })
    }

    /// The text by which an input chain with this policy and these rules drops UDP to port 4791.
    fn dropped(policy: &str, rules: &[Value]) -> Option<String> {
        let chain =
            |name: &str| json!({ "chain": { "family": "inet", "table": "t", "name": name } });
        let mut input = chain("in");
        for (key, value) in [("type", "filter"), ("hook", "input"), ("policy", policy)] {
            input["chain"][key] = value.into();
        }
        let all = [&[input, chain("other")], rules].concat();
        let rules = Ruleset::parse(&json!({ "nftables": all }).to_string()).unwrap();
        let packets = Packets { protocol: "udp", is_ipv6: false, ports: 4791..=4791 };
        assert_eq!(rules.dropping("output", &packets), None);
        let dropping = rules.dropping("input", &packets)?;
        assert_eq!(dropping.chain, "inet t in");
        Some(dropping.by)
    }

    #[test]
    fn a_chain_drops_only_packets_that_it_surely_drops() {
        let payload =
            |of: &str, field: &str| json!({ "payload": { "protocol": of, "field": field } });
        let meta = |key: &str| json!({ "meta": { "key": key } });
        let state = json!({ "ct": { "key": "state" } });
        let port = payload("udp", "dport");
        let limit = [json!({ "limit": { "rate": 5, "per": "second" } })];
        let vmap = |key: &Value, entries: Value| json!({ "vmap": { "key": key, "data": { "set": entries } } });
        let accepts = [
            (true, vec![]),
            (true, vec![is("==", &port, json!(4791))]),
            (true, vec![is("==", &port, json!({ "set": [22, { "range": [4000, 5000] }] }))]),
            (true, vec![is(">=", &port, json!(1024))]),
            (true, vec![is("!=", &port, json!(22))]),
            (true, vec![is("==", &payload("th", "dport"), json!(4791))]),
            (true, vec![is("==", &meta("l4proto"), json!({ "set": ["tcp", "udp"] }))]),
            (true, vec![is("in", &state, json!(["new", "established"]))]),
            (
                true,
                vec![
                    json!({ "counter": null }),
                    is("==", &payload("ip", "protocol"), json!("udp")),
                ],
            ),
            // Of these, the packets may be or not.
            (true, vec![is("==", &payload("ip", "saddr"), json!("10.0.0.1"))]),
            (true, vec![is("==", &port, json!("@ports"))]),
            (true, vec![is("==", &meta("iifname"), json!("eth0"))]),
            (true, limit.to_vec()),
            (true, vec![json!({ "vmap": { "key": port, "data": "@verdicts" } })]),
            // Of these they are not.
            (false, vec![is("==", &meta("iifname"), json!("lo"))]),
            (false, vec![is("in", &state, json!(["established", "related"]))]),
            (false, vec![is("==", &port, json!({ "set": [22, { "range": [80, 90] }] }))]),
            (false, vec![is("<", &port, json!(4791))]),
            (false, vec![is("!=", &payload("tcp", "dport"), json!(22))]),
            (false, vec![is("==", &payload("ip6", "nexthdr"), json!("udp"))]),
            (false, vec![is("==", &meta("l4proto"), json!("icmp"))]),
        ];
        for (may_accept, statements) in accepts {
            let found = dropped("drop", &[rule("in", &statements, "accept")]);
            assert_eq!(found.is_none(), may_accept, "{statements:?}");
        }
        let by = Some("its rule with handle 7 drops them".to_owned());
        let four = [is("==", &port, json!(4791))];
        assert_eq!(dropped("accept", &[rule("in", &four, "drop")]), by);
        assert_eq!(dropped("accept", &[rule("in", &four, "reject")]), by);
        assert_eq!(dropped("accept", &[rule("in", &[&limit[..], &four].concat(), "drop")]), None);
        assert_eq!(dropped("accept", &[]), None);
        let map = |verdict: &str| {
            vmap(&port, json!([[22, { "accept": null }], [4791, { verdict: null }]]))
        };
        assert_eq!(dropped("accept", &[rule("in", &[map("drop")], "accept")]), by);
        assert_eq!(dropped("drop", &[rule("in", &[map("accept")], "drop")]), None);
        let jump = |statements: &[Value]| rule("in", statements, "jump other");
        let there = rule("other", &four, "drop");
        let by = Some("it jumps to other, and there its rule with handle 7 drops them".to_owned());
        assert_eq!(dropped("accept", &[jump(&[]), there.clone()]), by);
        assert_eq!(dropped("accept", &[jump(&limit), there]), None);
        assert_eq!(dropped("drop", &[jump(&limit), rule("other", &four, "accept")]), None);
        let policy = dropped("drop", &[jump(&[])]);
        assert_eq!(policy.as_deref(), Some("its policy is drop, and no rule accepts them"));
        // No kernel has this.
        assert_eq!(dropped("drop", &[jump(&[]), rule("other", &[], "jump other")]), None);
    }

    #[test]
    fn a_text_that_is_no_ruleset_is_refused() {
        for text in ["", "[]", "{}", "{\"nftables\": 7}"] {
            assert!(Ruleset::parse(text).is_err(), "{text}");
        }
        assert!(Ruleset::parse("{\"nftables\": [7, {}, {\"rule\": 7}, {\"chain\": {}}]}").is_ok());
    }
}
