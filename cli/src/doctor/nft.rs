//! The rules of nftables, and the packets that they drop.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde_json::Value;

use super::netdev;

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
    /// Whether the chain drops all the packets. If not, an earlier rule may accept some packets.
    pub(crate) is_sure: bool,
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
    /// A program decides, or there are too many rules to look at.
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

    /// Finds a chain at a hook that drops these packets: one that surely drops them all, or else one that
    /// drops those that no rule of unknown outcome accepts. A rule drops for sure only if it matches every
    /// such packet, whatever the packet's address or mark.
    pub(crate) fn dropping(&self, hook: &str, packets: &Packets) -> Option<Dropping> {
        let family = if packets.is_ipv6 { "ip6" } else { "ip" };
        let walk =
            Walk { rules: self, packets, left: Cell::new(RULES_MAX), may_accept: Cell::new(false) };
        let dropping = |(id, chain): (&ChainId, &Chain)| {
            if chain.hook != hook || !(id[0] == "inet" || id[0] == family) {
                return None;
            }
            walk.may_accept.set(false);
            let by = match walk.fate(id, JUMPS_MAX) {
                Fate::Dropped(by) => by,
                Fate::Returned if chain.drops_by_policy => {
                    "its policy is drop, and no rule accepts them all".to_owned()
                }
                _ => return None,
            };
            Some(Dropping { chain: id.join(" "), by, is_sure: !walk.may_accept.get() })
        };
        self.0.iter().filter_map(dropping).min_by_key(|dropping| !dropping.is_sure)
    }
}

/// The way of packets through the chains. It passes over rules that may match or not.
struct Walk<'a> {
    rules: &'a Ruleset,
    packets: &'a Packets,
    /// How many more rules may be looked at.
    left: Cell<u32>,
    /// Whether a rule that was passed over may accept packets.
    may_accept: Cell<bool>,
}

/// A rule on the way.
struct Place<'a> {
    /// The text by which a finding names the rule.
    name: &'a str,
    chain: &'a ChainId,
    jumps_left: u32,
    /// Whether some packets may have returned from the chain, by a rule that was passed over. No later rule of
    /// the chain surely meets them.
    may_have_left: &'a Cell<bool>,
}

impl Walk<'_> {
    fn fate(&self, id: &ChainId, jumps_left: u32) -> Fate {
        let Some(chain) = self.rules.0.get(id).filter(|_| jumps_left > 0) else {
            return Fate::Unsure;
        };
        let may_have_left = &Cell::new(false);
        for (handle, statements) in &chain.rules {
            if self.left.get() == 0 {
                return Fate::Unsure;
            }
            self.left.set(self.left.get() - 1);
            let rule = format!("its rule with handle {handle} drops them");
            let name = if chain.hook.is_empty() {
                format!("it jumps to {}, and there {rule}", id[2])
            } else {
                rule
            };
            let place = Place { name: &name, chain: id, jumps_left, may_have_left };
            if let Some(fate) = self.rule(statements, &place) {
                return fate;
            }
        }
        Fate::Returned
    }

    /// The end of the packets by a rule; `None` if they go on to the next one.
    fn rule(&self, statements: &[Value], place: &Place<'_>) -> Option<Fate> {
        let mut is_sure = !place.may_have_left.get();
        let statements =
            statements.iter().filter_map(|statement| statement.as_object()?.iter().next());
        for (kind, body) in statements {
            let holds = match kind.as_str() {
                "match" => self.holds(body),
                "counter" | "log" | "comment" => Some(true),
                "accept" | "drop" | "reject" | "return" | "continue" | "jump" | "goto"
                | "queue" => {
                    return self.verdict(kind, body, is_sure, place);
                }
                "vmap" => {
                    // The entries of a map that has a name are not looked up.
                    let Some(entries) = body["data"]["set"].as_array() else {
                        self.may_accept.set(true);
                        return None;
                    };
                    for entry in entries {
                        let is_it = self.has(&self.field(&body["key"]), &entry[0]);
                        let verdict =
                            entry[1].as_object().and_then(|verdict| verdict.iter().next());
                        let (Some((kind, body)), true) = (verdict, is_it != Some(false)) else {
                            continue;
                        };
                        let is_sure = is_sure && is_it == Some(true);
                        let fate = self.verdict(kind, body, is_sure, place);
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
    fn verdict(&self, kind: &str, body: &Value, is_sure: bool, place: &Place<'_>) -> Option<Fate> {
        let fate = match kind {
            "continue" => return None,
            "accept" => Fate::Accepted,
            "drop" | "reject" => Fate::Dropped(place.name.to_owned()),
            "return" => Fate::Returned,
            "jump" | "goto" => {
                let [family, table, _] = place.chain.clone();
                match self.fate(&[family, table, word(&body["target"])], place.jumps_left - 1) {
                    Fate::Returned if kind == "jump" => return None,
                    fate => fate,
                }
            }
            _ => Fate::Unsure,
        };
        if is_sure {
            return Some(fate);
        }
        match fate {
            Fate::Dropped(_) => {}
            Fate::Returned => place.may_have_left.set(true),
            Fate::Accepted | Fate::Unsure => self.may_accept.set(true),
        }
        None
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
            // The first packet of a flow has no NAT status, unless a rule redirects it.
            (_, "status") => Field::Word(""),
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
            // Packets of other hosts do not come over loopback or an interface of guests.
            Field::Interface => {
                let name = value.as_str().unwrap_or_default();
                (name == "lo" || netdev::is_of_guests(name)).then_some(false)
            }
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
    use std::slice;

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

    /// How an input chain with this policy and these rules drops UDP to port 4791.
    fn dropping(policy: &str, rules: &[Value]) -> Option<Dropping> {
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
        Some(dropping)
    }

    /// The text by which that chain surely drops them.
    fn dropped(policy: &str, rules: &[Value]) -> Option<String> {
        dropping(policy, rules).filter(|dropping| dropping.is_sure).map(|dropping| dropping.by)
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
            (false, vec![is("==", &meta("iifname"), json!("docker0"))]),
            (false, vec![is("in", &json!({ "ct": { "key": "status" } }), json!("dnat"))]),
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
        assert_eq!(policy.as_deref(), Some("its policy is drop, and no rule accepts them all"));
        // No kernel has this.
        assert_eq!(dropped("drop", &[jump(&[]), rule("other", &[], "jump other")]), None);
    }

    #[test]
    fn a_chain_may_drop_packets_that_only_rules_of_unknown_outcome_accept() {
        let is_sure = |policy, rules: &[Value]| Some(dropping(policy, rules)?.is_sure);
        let from = json!({ "payload": { "protocol": "ip", "field": "saddr" } });
        let some = [is("==", &from, json!("10.0.0.1"))];
        let [accept, drop, jump] = ["accept", "drop", "jump other"].map(|to| rule("in", &some, to));
        assert_eq!(is_sure("drop", slice::from_ref(&accept)), Some(false));
        assert_eq!(is_sure("accept", &[accept.clone(), rule("in", &[], "reject")]), Some(false));
        assert_eq!(is_sure("drop", &[jump, rule("other", &[], "accept")]), Some(false));
        assert_eq!(is_sure("drop", slice::from_ref(&drop)), Some(true));
        // Every packet is accepted in the end, if no rule has dropped it.
        assert_eq!(is_sure("accept", &[drop.clone(), accept]), None);
        assert_eq!(is_sure("drop", &[drop, rule("in", &[], "accept")]), None);
        assert_eq!(is_sure("drop", &[rule("in", &[], "queue")]), None);
    }

    #[test]
    fn rules_behind_a_return_of_unknown_outcome_drop_nothing_for_sure() {
        let is_sure = |policy, rules: &[Value]| {
            let jump = rule("in", &[], "jump other");
            Some(dropping(policy, &[&[jump], rules].concat())?.is_sure)
        };
        let kind = json!({ "fib": { "result": "type", "flags": ["daddr"] } });
        let some = [is("==", &kind, json!("local"))];
        let back = rule("other", &some, "return");
        let [accept, drop] = ["accept", "drop"].map(|to| rule("other", &[], to));
        let by_map =
            json!({ "vmap": { "key": kind, "data": { "set": [["local", { "return": null }]] } } });
        for back in [&back, &rule("other", &[by_map], "continue")] {
            let dropped = [back.clone(), drop.clone()];
            assert_eq!(is_sure("accept", &dropped), None);
            let [first, second] = dropped.clone();
            assert_eq!(is_sure("drop", &[first, second, rule("in", &[], "accept")]), None);
            // Whoever returns is dropped later.
            assert_eq!(is_sure("drop", &dropped), Some(true));
        }
        assert_eq!(is_sure("drop", &[back, accept]), Some(false));
        let goto = [rule("other", &some, "goto third"), rule("third", &[], "return")];
        assert_eq!(is_sure("accept", &[&goto[..], &[drop]].concat()), None);
    }

    #[test]
    fn a_text_that_is_no_ruleset_is_refused() {
        for text in ["", "[]", "{}", "{\"nftables\": 7}"] {
            assert!(Ruleset::parse(text).is_err(), "{text}");
        }
        assert!(Ruleset::parse("{\"nftables\": [7, {}, {\"rule\": 7}, {\"chain\": {}}]}").is_ok());
    }
}
