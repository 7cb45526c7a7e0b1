//! Any bytes are a key, and two different keys never have the same bytes.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any};
use proptest::{option, prop_oneof, proptest};
use quell_core::charge::LimitSet;
use quell_core::cost::Cost;
use quell_core::descriptor::Descriptor;
use quell_core::key::{KeyName, escape};
use quell_core::limit::Limit;
use quell_core::rule::{DescriptorReader, EmptyValue, OnMissing, Per, Prefix, Rule};

use crate::bench::install;
use crate::config;

/// The parts of a key: none may be lost in its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Parts {
    domain: String,
    rule: String,
    per: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    entry: String,
    prefix: Option<(u8, u8)>,
    value: Option<Vec<u8>>,
}

/// Few letters, so that keys come close to each other.
fn names() -> impl Strategy<Value = String> {
    prop_oneof![3 => "[ab_:/]{0,4}", 1 => ".{0,6}"]
}

fn values() -> impl Strategy<Value = Vec<u8>> {
    let letters = vec(
        prop_oneof![Just(0), Just(1), Just(4), Just(b'a'), Just(b'_')],
        0..=6,
    );
    let addresses = proptest::sample::select(vec![
        "10.0.0.1",
        "10.0.0.2",
        "10.0.1.1",
        "::ffff:10.0.0.1",
        "2001:db8::1",
        "2001:db8::2",
        "2001:0db8:0::1",
        "2001:db8:0:1::1",
        "10.0.0.1:80",
    ]);
    prop_oneof![
        4 => letters,
        2 => addresses.prop_map(|address| address.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..=300),
    ]
}

fn keys() -> impl Strategy<Value = Parts> {
    let prefix = proptest::sample::select(vec![(32, 128), (24, 64), (0, 0), (24, 128)]);
    let part = (names(), option::of(prefix), option::weighted(0.8, values()));
    let part = part.prop_map(|(entry, prefix, value)| Part {
        entry,
        prefix,
        value,
    });
    (names(), names(), vec(part, 0..=3)).prop_map(|(domain, rule, mut per)| {
        // A descriptor has one value per name: a second entry of that name reads the first's.
        for (index, part) in per.iter_mut().enumerate() {
            part.entry.insert_str(0, &index.to_string());
        }
        Parts { domain, rule, per }
    })
}

fn rule(parts: &Parts) -> Rule {
    let per = parts.per.iter().map(|part| Per {
        entry: Arc::from(&*part.entry),
        prefix: part.prefix.and_then(|(v4, v6)| Prefix::new(v4, v6)),
        colocate: false,
    });
    Rule {
        per: per.collect(),
        on_missing: OnMissing::SharedKey,
        empty: EmptyValue::Keep,
        ..Rule::new(&parts.rule, Limit::per_second(1)).unwrap()
    }
}

fn bytes(parts: &Parts) -> Vec<u8> {
    let rule = rule(parts);
    let mut descriptor = Descriptor::new();
    for part in &parts.per {
        if let Some(value) = &part.value {
            descriptor.push(part.entry.clone(), value.clone());
        }
    }
    let mut bytes = rule.scope(&parts.domain);
    rule.capture(&DescriptorReader::new(&descriptor), &mut bytes);
    bytes.to_vec()
}

/// The value that a part stands for: an address, without its port, cut to its prefix, or the bytes as
/// they are.
fn meaning(part: &Part) -> Option<(Option<IpAddr>, Vec<u8>)> {
    let value = part.value.clone()?;
    let text = String::from_utf8(value.clone()).ok();
    let address = text.and_then(|text| {
        let with_port = || text.parse::<SocketAddr>().map(|address| address.ip());
        text.parse::<IpAddr>().or_else(|_| with_port()).ok()
    });
    match (part.prefix, address) {
        (Some((v4, v6)), Some(address)) => {
            Some((Some(cut(address.to_canonical(), v4, v6)), vec![]))
        }
        _ => Some((None, value)),
    }
}

/// The first bits of an address, one bit at a time.
fn cut(address: IpAddr, v4: u8, v6: u8) -> IpAddr {
    let keep = |octets: &mut [u8], bits: u8| {
        for (index, octet) in octets.iter_mut().enumerate() {
            for bit in 0..8 {
                if index * 8 + bit >= usize::from(bits) {
                    *octet &= !(0x80 >> bit);
                }
            }
        }
    };
    match address {
        IpAddr::V4(address) => {
            let mut octets = address.octets();
            keep(&mut octets, v4);
            IpAddr::from(octets)
        }
        IpAddr::V6(address) => {
            let mut octets = address.octets();
            keep(&mut octets, v6);
            IpAddr::from(octets)
        }
    }
}

fn same_key(one: &Parts, two: &Parts) -> bool {
    let alike = |(one, two): (&Part, &Part)| {
        (&one.entry, one.prefix, meaning(one)) == (&two.entry, two.prefix, meaning(two))
    };
    one.domain == two.domain
        && one.rule == two.rule
        && one.per.len() == two.per.len()
        && one.per.iter().zip(&two.per).all(alike)
}

proptest! {
    #![proptest_config(config(1_500))]

    #[test]
    fn two_keys_are_the_same_bytes_only_if_all_their_parts_are(one in keys(), two in keys()) {
        assert_eq!(bytes(&one) == bytes(&two), same_key(&one, &two));
    }

    /// Two keys that differ in one part only.
    #[test]
    fn near_misses_are_different_keys(one in keys(), other in keys(), which in 0..4_usize) {
        let mut two = one.clone();
        match which {
            0 => two.domain = other.domain,
            1 => two.rule = other.rule,
            2 => two.per = other.per,
            _ => if let (Some(part), Some(new)) = (two.per.first_mut(), other.per.first()) {
                part.value = new.value.clone();
            }
        }
        assert_eq!(bytes(&one) == bytes(&two), same_key(&one, &two));
    }

    #[test]
    fn no_key_is_the_beginning_of_another(one in keys(), two in keys()) {
        let (one, two) = (bytes(&one), bytes(&two));
        assert!(one == two || !two.starts_with(&one));
    }

    #[test]
    fn a_key_reads_back_as_what_it_was_made_of(parts in keys()) {
        let name = KeyName::parse(&bytes(&parts)).unwrap();
        assert_eq!((&name.domain, &name.rule), (&parts.domain, &parts.rule));
        assert_eq!(name.values.len(), parts.per.len());
        for ((entry, value), part) in name.values.iter().zip(&parts.per) {
            assert_eq!(entry, &part.entry);
            let expected = meaning(part).map(|(address, bytes)| {
                address.map_or_else(|| escape(&bytes), |address| address.to_string())
            });
            assert_eq!(value, &expected);
        }
    }

    #[test]
    fn reading_any_bytes_never_panics(junk in vec(any::<u8>(), 0..=200)) {
        let read = KeyName::parse(&junk);
        assert!(read.is_none_or(|name| b"ra".contains(&junk[0]) && name.values.len() <= 200));
    }

    /// A key that was truncated, extended or changed in its first byte is invalid.
    #[test]
    fn damaged_keys_are_none(
        parts in keys(),
        cut in any::<usize>(),
        more in vec(any::<u8>(), 1..=5),
        first in any::<u8>(),
    ) {
        let whole = bytes(&parts);
        assert_eq!(KeyName::parse(&whole[..cut % whole.len()]), None);
        assert_eq!(KeyName::parse(&[whole.as_slice(), more.as_slice()].concat()), None);
        let mut changed = whole.clone();
        changed[0] = first;
        if !b"ra".contains(&first) {
            assert_eq!(KeyName::parse(&changed), None);
        }
    }

    #[test]
    fn keys_that_come_with_a_call_are_any_bytes_and_no_rules(
        one in values(),
        two in values(),
        parts in keys(),
    ) {
        let active = install(1, Limit::per_second(1).build().unwrap(), 0);
        let ad_hoc = |key: &[u8]| {
            let set = LimitSet::ad_hoc(key, &active, Cost::ONE);
            set.key(&set.charges()[0]).as_bytes().to_vec()
        };
        assert_eq!(ad_hoc(&one) == ad_hoc(&two), one == two);
        assert_ne!(ad_hoc(&one), bytes(&parts));
        let name = KeyName::parse(&ad_hoc(&one)).unwrap();
        assert_eq!(name.values, [("key".to_owned(), Some(escape(&one)))]);
        assert_eq!((&*name.domain, &*name.rule), ("", ""));
    }
}

#[test]
fn joined_names_do_not_meet() {
    let key = |domain: &str, rule: &str, values: &[&str]| {
        let part = |(index, value): (usize, &&str)| Part {
            entry: index.to_string(),
            prefix: None,
            value: Some(value.as_bytes().to_vec()),
        };
        bytes(&Parts {
            domain: domain.to_owned(),
            rule: rule.to_owned(),
            per: values.iter().enumerate().map(part).collect(),
        })
    };
    assert_ne!(key("a", "b_c", &[]), key("a_b", "c", &[]));
    assert_ne!(key("a", "bc", &[]), key("ab", "c", &[]));
    assert_ne!(key("d", "r", &["x_y", "z"]), key("d", "r", &["x", "y_z"]));
    assert_ne!(key("d", "r", &["xy", "z"]), key("d", "r", &["x", "yz"]));
    assert_ne!(key("d", "r", &["", "x"]), key("d", "r", &["x", ""]));
}

#[test]
fn a_missing_entry_is_no_empty_one() {
    let part = |value: Option<&[u8]>| Parts {
        domain: "d".to_owned(),
        rule: "r".to_owned(),
        per: vec![Part {
            entry: "user".to_owned(),
            prefix: None,
            value: value.map(<[u8]>::to_vec),
        }],
    };
    assert_ne!(bytes(&part(None)), bytes(&part(Some(b""))));
    let name = KeyName::parse(&bytes(&part(None))).unwrap();
    assert_eq!(name.to_string(), "user?");
}
