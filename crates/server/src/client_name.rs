//! The names by which the limits of a volume know its clients.

use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

use floe_nvme::target::subsystem::check_nqn;
use serde::{Deserialize, Serialize};

/// Name of NBD clients that use TCP from a loopback address.
const LOOPBACK: &str = "loopback";

/// Name of the clients whose address cannot be found out.
const UNKNOWN: &str = "unknown";

/// Name of all clients of a volume that its settings do not name.
const OTHERS: &str = "others";

/// Text before the number of a user.
const USER: &str = "user:";

/// Bits of an address of IPv4.
const BITS_V4: u8 = 32;

/// Bits of an address of IPv6 by which a machine is known; it can choose the others itself.
const MACHINE_BITS_V6: u8 = 64;

/// Bits of an address of IPv6 before the address of IPv4 that it contains.
const MAPPED_BITS: u8 = 96;

/// The addresses that begin with the same bits: at most 32 of IPv4, and at most 64 of IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientNetwork {
    /// The first address. All bits behind the prefix are 0.
    first: IpAddr,
    bits: u8,
}

impl ClientNetwork {
    /// Returns the network by which a machine with this address is known.
    pub(crate) fn of_machine(address: IpAddr) -> Self {
        let bits = if address.is_ipv4() { BITS_V4 } else { MACHINE_BITS_V6 };
        Self { first: first_of(address, bits), bits }
    }

    /// Returns whether another network, or a machine, is part of this one.
    pub(crate) fn contains(&self, other: &Self) -> bool {
        self.first.is_ipv4() == other.first.is_ipv4()
            && self.bits <= other.bits
            && first_of(other.first, self.bits) == self.first
    }

    /// Returns the network of the addresses that begin with as many of the same bits, at most those
    /// of this network.
    pub(crate) fn cut(&self, bits: u8) -> Self {
        let bits = bits.min(self.bits);
        Self { first: first_of(self.first, bits), bits }
    }

    /// Returns the number of bits that both prefixes begin with.
    pub(crate) fn common_bits(&self, other: &Self) -> u8 {
        let same = match (self.first, other.first) {
            (IpAddr::V4(one), IpAddr::V4(other)) => {
                (one.to_bits() ^ other.to_bits()).leading_zeros()
            }
            (IpAddr::V6(one), IpAddr::V6(other)) => {
                (one.to_bits() ^ other.to_bits()).leading_zeros()
            }
            _ => 0,
        };
        self.bits.min(other.bits).min(same as u8)
    }

    /// Reads an address, or the first address of a network and the length of its prefix. Returns
    /// `None` if the text does not begin with an address.
    pub(crate) fn parse(text: &str) -> Option<Result<Self, String>> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address = address.parse().ok()?;
        Some(Self::of_text(text, address, bits))
    }

    fn of_text(text: &str, given: IpAddr, bits: Option<&str>) -> Result<Self, String> {
        let most = if given.is_ipv4() { BITS_V4 } else { 128 };
        let parsed = bits.map(|bits| bits.parse().ok().filter(|bits| *bits <= most));
        let Some(bits) = parsed.unwrap_or(Some(most)) else {
            return Err(format!("{text}: a prefix of this address has 0 to {most} bits"));
        };
        // An address of IPv4 within one of IPv6 is that of IPv4.
        let (address, bits) = match given.to_canonical() {
            IpAddr::V4(address) if given.is_ipv6() => match bits.checked_sub(MAPPED_BITS) {
                Some(bits) => (IpAddr::V4(address), bits),
                None => {
                    return Err(format!(
                        "{text}: no network of IPv6 has clients of IPv4; write one of IPv4, such \
                         as {address}"
                    ));
                }
            },
            _ => (given, bits),
        };
        if address.is_loopback() {
            return Err(format!("{text} is this machine: write loopback"));
        }
        let known_bits = Self::of_machine(address).bits;
        let network = Self { first: first_of(address, bits.min(known_bits)), bits };
        if bits > known_bits {
            let network = Self { bits: known_bits, ..network };
            return Err(format!(
                "{text}: a machine can choose the last 64 bits of its address; write {network}"
            ));
        }
        if network.first != address {
            return Err(format!("{text} has bits behind its prefix; write {network}"));
        }
        Ok(network)
    }
}

impl Display for ClientNetwork {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self { first: IpAddr::V4(address), bits: BITS_V4 } => address.fmt(f),
            Self { first, bits } => write!(f, "{first}/{bits}"),
        }
    }
}

/// Returns the first address that has the same first bits.
fn first_of(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(u32::from(BITS_V4 - bits)).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(u32::from(128 - bits)).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    }
}

/// The name of a client, by which all of its connections are known. In the settings of a volume it
/// may also stand for all clients of a network, or for all others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ClientName {
    /// An NVMe host, by its qualified name (host NQN).
    Host(Arc<str>),
    /// NBD clients over TCP with an address in this network.
    Network(ClientNetwork),
    /// NBD clients over TCP from a loopback address.
    Loopback,
    /// NBD clients over a Unix socket that this user (`uid`) runs.
    User(u32),
    /// Clients whose address cannot be found out.
    Unknown,
    /// All clients that the settings of the volume do not name.
    Others,
}

impl ClientName {
    /// Returns the name of the machine with this address. With IPv6 it is the network, of 64 bits,
    /// in which a machine can choose its address as it likes. This machine has one name.
    pub(crate) fn of_machine(address: IpAddr) -> Self {
        match address.to_canonical() {
            address if address.is_loopback() => Self::Loopback,
            address => Self::Network(ClientNetwork::of_machine(address)),
        }
    }

    /// Returns whether the name stands for more than one client: a network, or all others.
    pub(crate) fn is_of_many(&self) -> bool {
        match self {
            Self::Network(network) => *network != ClientNetwork::of_machine(network.first),
            Self::Others => true,
            Self::Host(_) | Self::Loopback | Self::User(_) | Self::Unknown => false,
        }
    }
}

impl Display for ClientName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(name) => f.write_str(name),
            Self::Network(network) => network.fmt(f),
            Self::Loopback => f.write_str(LOOPBACK),
            Self::User(user) => write!(f, "{USER}{user}"),
            Self::Unknown => f.write_str(UNKNOWN),
            Self::Others => f.write_str(OTHERS),
        }
    }
}

impl FromStr for ClientName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let network = match text {
            LOOPBACK => return Ok(Self::Loopback),
            UNKNOWN => return Ok(Self::Unknown),
            OTHERS => return Ok(Self::Others),
            _ => ClientNetwork::parse(text),
        };
        if let Some(network) = network {
            return network.map(Self::Network);
        }
        if let Some(number) = text.strip_prefix(USER) {
            let user = number.parse().map_err(|_| {
                format!("{text:?} names no user: write the number (uid), such as user:1000")
            })?;
            return Ok(Self::User(user));
        }
        if text.starts_with("nqn.") {
            check_nqn(text).map_err(|error| error.to_string())?;
            return Ok(Self::Host(text.into()));
        }
        Err(format!(
            "{text:?} names no client: write the NQN of an NVMe host, an address or a network such \
             as 10.0.0.0/8 of NBD clients, user:UID, loopback or others"
        ))
    }
}

impl TryFrom<String> for ClientName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ClientName> for String {
    fn from(name: ClientName) -> Self {
        name.to_string()
    }
}

#[cfg(test)]
mod tests {
    use floe_testkit::Random;

    use super::*;

    #[test]
    fn a_name_is_written_as_it_is_read() {
        for text in [
            "nqn.2014-08.org.nvmexpress:uuid:7ff6b1b1-8b1c-4a7e-9d8b-0f4a1b1f7c11",
            "10.0.0.5",
            "10.0.0.0/8",
            "2001:db8::/32",
            "loopback",
            "user:1000",
            "unknown",
            "others",
        ] {
            assert_eq!(text.parse::<ClientName>().unwrap().to_string(), text);
        }
        for (text, why) in [
            ("", "names no client"),
            ("pictures", "names no client"),
            ("nqn.", "no NVMe qualified name"),
            ("user:", "such as user:1000"),
            ("user:-1", "such as user:1000"),
            ("10.0.0.5/8", "10.0.0.0/8"),
        ] {
            let error = text.parse::<ClientName>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_client() {
        let name = |address: &str| ClientName::of_machine(address.parse().unwrap());
        assert_eq!(name("2001:db8:1:2:3:4:5:6").to_string(), "2001:db8:1:2::/64");
        assert_eq!(name("2001:db8:1:2:ffff::1"), name("2001:db8:1:2:3:4:5:6"));
        assert_ne!(name("2001:db8:1:3:3:4:5:6"), name("2001:db8:1:2:3:4:5:6"));
        assert_eq!(name("::ffff:192.0.2.7"), name("192.0.2.7"));
        assert_ne!(name("192.0.2.8"), name("192.0.2.7"));
        for address in ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(name(address), ClientName::Loopback, "{address}");
        }
    }

    #[test]
    fn networks_and_others_are_names_of_many() {
        let name = |text: &str| text.parse::<ClientName>().unwrap();
        for text in ["10.0.0.0/8", "10.0.0.0/31", "2001:db8::/63", "::/0", "others"] {
            assert!(name(text).is_of_many(), "{text}");
        }
        for text in ["10.0.0.0", "2001:db8::/64", "loopback", "user:7", "unknown", "nqn.2026-11.a"]
        {
            assert!(!name(text).is_of_many(), "{text}");
        }
    }

    fn parsed(text: &str) -> ClientNetwork {
        ClientNetwork::parse(text).unwrap().unwrap()
    }

    #[test]
    fn an_address_of_ipv4_in_one_of_ipv6_is_that_of_ipv4() {
        assert_eq!(parsed("::ffff:10.0.0.5"), parsed("10.0.0.5"));
        assert_eq!(parsed("::ffff:10.0.0.0/104"), parsed("10.0.0.0/8"));
        assert_eq!(parsed("::ffff:0.0.0.0/96"), parsed("0.0.0.0/0"));
        let any = parsed("::/0");
        assert!(!any.contains(&parsed("10.0.0.5")) && any.contains(&parsed("2001:db8::/64")));
    }

    #[test]
    fn a_wrong_network_has_a_line_that_says_what_to_write() {
        for (text, why) in [
            ("10.0.0.0/33", "10.0.0.0/33: a prefix of this address has 0 to 32 bits"),
            ("10.0.0.0/", "0 to 32 bits"),
            ("10.0.0.0/-1", "0 to 32 bits"),
            ("10.1.0.0/8", "10.1.0.0/8 has bits behind its prefix; write 10.0.0.0/8"),
            ("2001:db8::5", "can choose the last 64 bits of its address; write 2001:db8::/64"),
            ("2001:db8::/65", "write 2001:db8::/64"),
            ("2001:db8::/129", "0 to 128 bits"),
            ("2001:db8::/16", "2001:db8::/16 has bits behind its prefix; write 2001::/16"),
            (
                "::ffff:10.0.0.5/95",
                "no network of IPv6 has clients of IPv4; write one of IPv4, such",
            ),
            ("::ffff:10.0.0.0/64", "such as 10.0.0.0"),
            ("127.0.0.1", "127.0.0.1 is this machine: write loopback"),
            ("127.0.0.0/8", "write loopback"),
            ("::1", "write loopback"),
            ("::ffff:127.0.0.1", "write loopback"),
        ] {
            let error = ClientNetwork::parse(text).unwrap().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        for text in ["", "nqn.2014-08.org.nvmexpress", "10.0.0", "/8", "fe80::1%eth0"] {
            assert_eq!(ClientNetwork::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_network_has_the_machines_whose_first_bits_are_its_own() {
        let mut random = Random(7);
        for _ in 0..10_000 {
            let is_v4 = random.below(2) == 0;
            // Few different bits, so that many machines are in the network.
            let mut address = || {
                let bits = random.below(4) as u128 | (random.below(4) as u128) << 126;
                match is_v4 {
                    true => Ipv4Addr::from_bits(bits as u32 | (bits >> 96) as u32).into(),
                    false => IpAddr::V6(Ipv6Addr::from_bits(bits | (bits & 3) << 64)),
                }
            };
            let (one, machine) = (address(), address());
            let bits = random.below(if is_v4 { 33 } else { 65 }) as u8;
            let network = ClientNetwork { first: first_of(one, bits), bits };
            let text = |address: IpAddr| match address {
                IpAddr::V4(address) => format!("{:032b}", address.to_bits()),
                IpAddr::V6(address) => format!("{:0128b}", address.to_bits()),
            };
            let bits = usize::from(bits);
            assert_eq!(
                network.contains(&ClientNetwork::of_machine(machine)),
                text(one)[..bits] == text(machine)[..bits],
                "{network} {machine}"
            );
        }
    }
}
