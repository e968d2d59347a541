//! The clients that the limits of a volume name, with their limits and weights.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Duration;

use floe_block::{counters, format_size};
use floe_device::parse_bytes;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::client_name::ClientName;
use crate::rate::{WEIGHT, Wrong, bytes_out_of_range, requests_out_of_range, weight_out_of_range};

/// Most clients that a volume can name. Metrics have a series for each.
const MOST: usize = 256;

/// The limits of one named client, in place of those of each client, and its weight. In a status it
/// may have more fields, which servers of later versions add.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientLimit {
    /// Most requests per second; `None` for no limit.
    pub requests_per_second: Option<u64>,
    /// Most bytes per second; `None` for no limit.
    pub bytes_per_second: Option<u64>,
    /// The client's part of the limits of the volume, and of the volume's part of those of the
    /// server, in proportion to the weights of its other clients: 1 to 1000.
    pub weight: u64,
}

impl Default for ClientLimit {
    fn default() -> Self {
        Self { requests_per_second: None, bytes_per_second: None, weight: WEIGHT }
    }
}

impl ClientLimit {
    /// Returns whether there is a limit of requests or bytes per second.
    pub(crate) fn has_rate(&self) -> bool {
        self.requests_per_second.is_some() || self.bytes_per_second.is_some()
    }

    /// Returns whether the weight is not that of a client without one.
    pub fn has_weight(&self) -> bool {
        self.weight != WEIGHT
    }

    /// Returns the first value that is out of its range: the setting's name, and the problem.
    pub(crate) fn out_of_range(&self) -> Option<Wrong> {
        requests_out_of_range("requests-per-second", self.requests_per_second)
            .or_else(|| bytes_out_of_range("bytes-per-second", self.bytes_per_second))
            .or_else(|| weight_out_of_range(self.weight))
    }
}

counters! {
    /// Requests of the clients that a name stands for, as limits count them.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub(crate) struct ClientUse {
        /// Requests of a client that the volume names, as limits count them.
        pub(crate) requests: u64 = Counter { metric: "floe_volume_client_requests_total" },
        /// Bytes of the requests of a client that the volume names, as limits count them.
        pub(crate) bytes: u64 = Counter { metric: "floe_volume_client_bytes_total" },
        /// Requests of a client that the volume names, after a wait for limits.
        pub(crate) delayed_requests: u64 =
            Counter { metric: "floe_volume_client_delayed_requests_total" },
        /// Sum of the waits.
        pub(crate) delayed: Duration,
    }
}

impl ClientUse {
    /// Counts a request that starts.
    pub(crate) fn started(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }

    /// Counts a request that starts after a wait.
    pub(crate) fn waited(&mut self, bytes: u64, time: Duration) {
        self.started(bytes);
        self.delayed_requests += 1;
        self.delayed += time;
    }
}

/// Counters of clients by number of the volume and by name.
pub(crate) type ClientUses = BTreeMap<(u16, ClientName), ClientUse>;

/// A client and its limits in the form of a setting: its name, then
/// `,requests-per-second=N`, `,bytes-per-second=SIZE` and `,weight=N` as far as they are set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedClient {
    /// Name of the client.
    pub name: ClientName,
    /// Its limits.
    pub limit: ClientLimit,
}

impl FromStr for NamedClient {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let name: ClientName = parts.next().unwrap_or_default().parse()?;
        let (mut limit, mut weight) = (ClientLimit::default(), None);
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let (place, parsed, form) = match key {
                "requests-per-second" => {
                    (&mut limit.requests_per_second, value.parse().ok(), "a whole number")
                }
                "bytes-per-second" => {
                    (&mut limit.bytes_per_second, parse_bytes(value), "a size, such as 100MiB")
                }
                "weight" => (&mut weight, value.parse().ok(), "a whole number"),
                _ => {
                    return Err(format!(
                        "{name}: {part:?} is none of requests-per-second=N, \
                         bytes-per-second=SIZE and weight=N"
                    ));
                }
            };
            let Some(number) = parsed else {
                return Err(format!("{name}: {key} = {value:?} is not {form}"));
            };
            if place.replace(number).is_some() {
                return Err(format!("{name}: {key} is given twice"));
            }
        }
        limit.weight = weight.unwrap_or(limit.weight);
        match limit.out_of_range() {
            Some((_, problem)) => Err(format!("{name}: {problem}")),
            None => Ok(Self { name, limit }),
        }
    }
}

impl Display for NamedClient {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)?;
        let ClientLimit { requests_per_second, bytes_per_second, weight } = self.limit;
        if let Some(requests) = requests_per_second {
            write!(f, ",requests-per-second={requests}")?;
        }
        if let Some(bytes) = bytes_per_second {
            write!(f, ",bytes-per-second={}", format_size(bytes))?;
        }
        if self.limit.has_weight() {
            write!(f, ",weight={weight}")?;
        }
        Ok(())
    }
}

/// Names that get limits of their own, and those that have none any more (`None`).
pub type ClientChanges = BTreeMap<ClientName, Option<ClientLimit>>;

/// The limits of a client in a request body, which has no other fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenLimit {
    requests_per_second: Option<u64>,
    bytes_per_second: Option<u64>,
    weight: Option<u64>,
}

impl From<GivenLimit> for ClientLimit {
    fn from(given: GivenLimit) -> Self {
        let GivenLimit { requests_per_second, bytes_per_second, weight } = given;
        Self { requests_per_second, bytes_per_second, weight: weight.unwrap_or(WEIGHT) }
    }
}

/// Deserialises the clients of a request body, which has each name once.
pub(crate) fn given_clients<'de, D: Deserializer<'de>>(from: D) -> Result<ClientChanges, D::Error> {
    struct Clients;

    impl<'de> Visitor<'de> for Clients {
        type Value = ClientChanges;

        fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
            f.write_str("limits by the names of clients")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ClientChanges, A::Error> {
            let mut clients = ClientChanges::new();
            while let Some((name, limit)) = map.next_entry::<ClientName, Option<GivenLimit>>()? {
                if clients.contains_key(&name) {
                    return Err(A::Error::custom(format!("clients names {name} twice")));
                }
                clients.insert(name, limit.map(ClientLimit::from));
            }
            Ok(clients)
        }
    }

    from.deserialize_map(Clients)
}

/// The clients with limits of their own, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NamedClients(BTreeMap<ClientName, ClientLimit>);

impl NamedClients {
    /// No client.
    pub const NONE: Self = Self(BTreeMap::new());

    /// Returns the names and limits, in the order of names.
    pub fn iter(&self) -> impl Iterator<Item = (&ClientName, &ClientLimit)> {
        self.0.iter()
    }

    /// Returns the limits of a name; `None` if it has none of its own.
    pub(crate) fn get(&self, name: &ClientName) -> Option<&ClientLimit> {
        self.0.get(name)
    }

    /// Returns whether any name has a limit of requests or bytes per second.
    pub(crate) fn has_rate(&self) -> bool {
        self.0.values().any(ClientLimit::has_rate)
    }

    /// Returns whether any name has a weight of its own.
    pub(crate) fn has_weight(&self) -> bool {
        self.0.values().any(ClientLimit::has_weight)
    }

    /// Returns whether the same names have the same limits, whatever their weights.
    pub(crate) fn have_rates_of(&self, other: &Self) -> bool {
        self.rates().eq(other.rates())
    }

    fn rates(&self) -> impl Iterator<Item = (&ClientName, [Option<u64>; 2])> {
        self.iter().map(|(name, it)| (name, [it.requests_per_second, it.bytes_per_second]))
    }

    /// Returns whether both have the same names.
    pub(crate) fn have_names_of(&self, other: &Self) -> bool {
        self.0.keys().eq(other.0.keys())
    }

    /// Returns the names, whose numbers among the clients that share a rate by weight begin with 1.
    /// All clients without a name together are number 0.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (u16, &ClientName)> {
        (1..).zip(self.0.keys())
    }

    /// Returns the weights by number; none if no client has a weight of its own.
    pub(crate) fn weights(&self) -> Vec<u64> {
        match self.has_weight() {
            true => [WEIGHT].into_iter().chain(self.0.values().map(|it| it.weight)).collect(),
            false => Vec::new(),
        }
    }

    /// Returns the name whose limits a client has: its own, that of the network with the longest
    /// prefix, or that of all others if those have a limit. Otherwise it is its own, which has the
    /// limits of each client.
    pub(crate) fn name_for<'a>(&'a self, client: &'a ClientName) -> &'a ClientName {
        if self.0.contains_key(client) {
            return client;
        }
        let others = || self.0.get_key_value(&ClientName::Others);
        let others = || others().filter(|(_, limit)| limit.has_rate()).map(|(name, _)| name);
        self.network_of(client).or_else(others).unwrap_or(client)
    }

    /// Returns the name of the network with the longest prefix that contains a client.
    ///
    /// Networks are ordered by their first addresses, then by their prefixes. So the last one that
    /// is not behind the client either contains it, or no network contains both it and the client
    /// that has more bits than their common prefix: those are skipped.
    fn network_of(&self, client: &ClientName) -> Option<&ClientName> {
        let ClientName::Network(client) = client else { return None };
        let (least, mut most) = (client.cut(0), *client);
        loop {
            let names = ClientName::Network(least)..=ClientName::Network(most);
            let (name, _) = self.0.range(names).next_back()?;
            match name {
                ClientName::Network(network) if !network.contains(client) => {
                    most = client.cut(network.common_bits(client));
                }
                _ => return Some(name),
            }
        }
    }

    /// Returns the clients after a change: names with new limits are added or replaced, and those
    /// with `None` are removed.
    pub(crate) fn changed(&self, change: &ClientChanges) -> Self {
        let mut clients = self.clone();
        for (name, limit) in change {
            match limit {
                Some(limit) => drop(clients.0.insert(name.clone(), *limit)),
                None => drop(clients.0.remove(name)),
            }
        }
        clients
    }

    /// Returns the first problem of these clients. `of_each` says that each client without a name
    /// has a limit.
    pub(crate) fn problem(&self, of_each: bool) -> Option<String> {
        if self.0.len() > MOST {
            return Some(format!(
                "clients has {} names; at most {MOST} are possible",
                self.0.len()
            ));
        }
        let has_only_weight = |it: &ClientLimit| it.has_weight() && !it.has_rate();
        if of_each && self.get(&ClientName::Others).is_some_and(|it| !has_only_weight(it)) {
            let problem = "clients names others, which can have a weight only beside the limits \
                           of each client: leave out others, or client-requests-per-second and \
                           client-bytes-per-second";
            return Some(problem.to_owned());
        }
        let wrong = |(name, limit): (&ClientName, &ClientLimit)| {
            limit.out_of_range().map(|(_, problem)| format!("{name}: {problem}"))
        };
        self.iter().find_map(wrong)
    }
}

impl Display for NamedClients {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (at, (name, limit)) in self.iter().enumerate() {
            let (name, limit) = (name.clone(), *limit);
            write!(f, "{}{}", if at > 0 { " " } else { "" }, NamedClient { name, limit })?;
        }
        Ok(())
    }
}

impl FromIterator<(ClientName, ClientLimit)> for NamedClients {
    fn from_iter<I: IntoIterator<Item = (ClientName, ClientLimit)>>(clients: I) -> Self {
        Self(clients.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use floe_testkit::Random;

    use super::*;

    fn clients(texts: &[&str]) -> NamedClients {
        texts.iter().map(|text| (text.parse().unwrap(), ClientLimit::default())).collect()
    }

    #[test]
    fn a_client_has_the_limits_of_its_name_its_network_or_the_others() {
        let host = "nqn.2026-11.io.example:a";
        let named = clients(&[host, "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "user:7"]);
        let others = |limit| named.changed(&[(ClientName::Others, Some(limit))].into());
        let slow = ClientLimit { requests_per_second: Some(5), ..ClientLimit::default() };
        let (open, light) = (others(slow), others(ClientLimit { weight: 5, ..slow }));
        let unlimited = others(ClientLimit { weight: 5, ..ClientLimit::default() });
        for (client, name, is_other) in [
            (host, host, false),
            ("nqn.2026-11.io.example:b", "nqn.2026-11.io.example:b", true),
            ("10.9.9.9", "10.0.0.0/8", false),
            ("10.1.9.9", "10.1.0.0/16", false),
            ("10.1.2.3", "10.1.2.3", false),
            ("11.1.2.3", "11.1.2.3", true),
            ("2001:db8::/64", "2001:db8::/64", true),
            ("user:7", "user:7", false),
            ("user:8", "user:8", true),
            ("loopback", "loopback", true),
            ("unknown", "unknown", true),
        ] {
            let client = client.parse().unwrap();
            assert_eq!(named.name_for(&client).to_string(), name);
            assert_eq!(unlimited.name_for(&client).to_string(), name);
            assert_eq!(light.name_for(&client), open.name_for(&client));
            let open = open.name_for(&client).to_string();
            assert_eq!(open, if is_other { "others" } else { name });
            assert_eq!(NamedClients::NONE.name_for(&client), &client);
        }
    }

    #[test]
    fn the_longest_of_overlapping_prefixes_decides() {
        let mut random = Random(3);
        for _ in 0..1000 {
            let (mut networks, shift) = (Vec::new(), random.below(28));
            for _ in 0..random.below(12) {
                let bits = random.below(33) as u32;
                let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
                networks.push(((random.below(16) as u32) << shift & mask, mask, bits));
            }
            let text = |first: u32, bits| format!("{}/{bits}", Ipv4Addr::from_bits(first));
            let names: Vec<String> = networks.iter().map(|&(it, _, n)| text(it, n)).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let named = clients(&names);
            for _ in 0..20 {
                let address = (random.below(16) as u32) << shift;
                if address >> 24 == 127 {
                    continue; // this machine
                }
                let client = ClientName::of_machine(IpAddr::V4(Ipv4Addr::from_bits(address)));
                let has = networks.iter().filter(|(first, mask, _)| address & mask == *first);
                let longest = has.max_by_key(|(.., bits)| *bits);
                let expected = longest
                    .map_or(client.clone(), |&(first, _, bits)| text(first, bits).parse().unwrap());
                assert_eq!(named.name_for(&client), &expected);
            }
        }
    }

    #[test]
    fn a_change_adds_replaces_and_removes() {
        let slow = ClientLimit { requests_per_second: Some(5), ..ClientLimit::default() };
        let name = |text: &str| text.parse::<ClientName>().unwrap();
        let before = clients(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
        let json = r#"{"10.0.0.1": null, "10.0.0.2": {"requests_per_second": 5},
                       "10.0.0.9": null, "others": {}}"#;
        let after = before.changed(&serde_json::from_str(json).unwrap());
        let left: Vec<String> = after.iter().map(|(name, _)| name.to_string()).collect();
        assert_eq!(left, ["10.0.0.2", "10.0.0.3", "others"]);
        assert_eq!(after.get(&name("10.0.0.2")), Some(&slow));
        assert!(after.has_rate() && !before.has_rate());
        assert_eq!(after.problem(false), None);
        assert!(after.problem(true).unwrap().contains("leave out others"));
        let others = |limit| before.changed(&[(ClientName::Others, Some(limit))].into());
        let light = ClientLimit { weight: 5, ..ClientLimit::default() };
        assert_eq!(others(light).problem(true), None);
        assert!(others(ClientLimit { weight: 5, ..slow }).problem(true).is_some());
        let wrong = ClientLimit { bytes_per_second: Some(1), ..slow };
        let wrong = before.changed(&[(name("10.0.0.1"), Some(wrong))].into());
        assert!(wrong.problem(false).unwrap().starts_with("10.0.0.1: bytes-per-second = 1 is"));
        let many = (0..257).map(|user| (ClientName::User(user), ClientLimit::default()));
        let many: NamedClients = many.collect();
        assert_eq!(many.problem(true).unwrap(), "clients has 257 names; at most 256 are possible");
    }

    #[test]
    fn a_request_body_has_each_name_once_and_no_unknown_field_and_a_status_may_have_more() {
        let given = |text| given_clients(&mut serde_json::Deserializer::from_str(text));
        let clients = given(r#"{"user:1": {"weight": 5}, "user:2": null, "others": {}}"#).unwrap();
        let expected = [
            (ClientName::User(1), Some(ClientLimit { weight: 5, ..ClientLimit::default() })),
            (ClientName::User(2), None),
            (ClientName::Others, Some(ClientLimit::default())),
        ];
        assert_eq!(clients, expected.into());
        for (text, why) in [
            (r#"{"user:1": {"weight": 5}, "user:1": null}"#, "clients names user:1 twice"),
            (r#"{"10.0.0.5": {}, "::ffff:10.0.0.5": {}}"#, "clients names 10.0.0.5 twice"),
            (r#"{"user:1": {"speed": 5}}"#, "unknown field `speed`"),
            (r#"{"user:x": {}}"#, "such as user:1000"),
            ("5", "limits by the names of clients"),
        ] {
            let error = given(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        let later: ClientLimit = serde_json::from_str(r#"{"weight": 5, "speed": 5}"#).unwrap();
        assert_eq!(later, ClientLimit { weight: 5, ..ClientLimit::default() });
    }

    #[test]
    fn a_setting_is_written_as_it_is_read() {
        for text in [
            "nqn.2026-11.io.example:a,requests-per-second=500,bytes-per-second=20MiB",
            "10.0.0.0/8,bytes-per-second=4KiB",
            "user:1000,requests-per-second=1,weight=1000",
            "loopback,weight=1",
            "others",
        ] {
            let client: NamedClient = text.parse().unwrap();
            assert_eq!(client.to_string(), text);
            let (name, limit) = (client.name, client.limit);
            let json = serde_json::to_string(&(&name, limit)).unwrap();
            assert_eq!(serde_json::from_str::<(_, _)>(&json).unwrap(), (name, limit));
        }
    }

    #[test]
    fn a_wrong_setting_names_the_client_and_the_problem() {
        for (text, why) in [
            ("", "names no client"),
            ("10.0.0.5,", "10.0.0.5: \"\" is none of requests-per-second=N"),
            ("10.0.0.5,speed=1", "10.0.0.5: \"speed=1\" is none of"),
            ("10.0.0.5,requests-per-second", "requests-per-second = \"\" is not a whole number"),
            ("10.0.0.5,requests-per-second=many", "= \"many\" is not a whole number"),
            ("10.0.0.5,requests-per-second=0", "requests-per-second = 0 is not between 1 and"),
            ("10.0.0.5,bytes-per-second=fast", "bytes-per-second = \"fast\" is not a size"),
            ("10.0.0.5,bytes-per-second=1KiB", "bytes-per-second = 1024 is less than 4KiB"),
            ("10.0.0.5,weight=0", "10.0.0.5: weight = 0 is not between 1 and 1000"),
            ("10.0.0.5,weight=1001", "10.0.0.5: weight = 1001 is not between 1 and 1000"),
            ("10.0.0.5,weight=-1", "10.0.0.5: weight = \"-1\" is not a whole number"),
            (
                "10.0.0.5,bytes-per-second=1MiB,bytes-per-second=1MiB",
                "10.0.0.5: bytes-per-second is given twice",
            ),
        ] {
            let error = text.parse::<NamedClient>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
