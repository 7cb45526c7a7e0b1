//! Roles by every way to show who one is: tokens in either field and in each form of `AUTH`, passwords and
//! client certificates; at addresses and at Unix sockets. Each walks all routes or all commands, which are in
//! the tables of `access.rs`.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quell_host::access::{NewToken, Role, password_entry};
use quell_server::Address;

use crate::access::{COMMANDS, Need, ROUTES};
use crate::certificates::{Authority, Pair, TLS};
use crate::harness::{Answer, DEADLINE, Fixture, SHOP, send};

const PASSWORD: &str = "four words of Ada's: and a colon";

/// The roles that people may have.
const OF_PEOPLE: [Role; 4] = [Role::Read, Role::Admin, Role::Policy, Role::Metrics];

/// Addresses of the listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Tcp,
    Unix,
    /// Over TLS, with a listener for administration.
    Tls,
}

/// Credentials of a caller with one role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    Nothing,
    Bearer,
    /// `X-Quell-Token`.
    Field,
    Password,
    Certificate,
    /// `AUTH TOKEN`.
    Auth,
    /// `AUTH NAME TOKEN`.
    AuthAs,
    /// `HELLO 3 AUTH NAME TOKEN`.
    Hello,
}

impl Proof {
    /// Those that the server calls so.
    fn noun(self) -> &'static str {
        match self {
            Self::Password => "user",
            Self::Certificate => "certificate",
            _ => "token",
        }
    }

    fn roles(self) -> &'static [Role] {
        match self {
            Self::Password => &OF_PEOPLE,
            Self::Nothing => &Role::ALL[..1],
            _ => &Role::ALL,
        }
    }

    /// The name of the entry with this proof and this role.
    fn name(self, role: Role) -> String {
        format!("{}-of-{role}", self.noun())
    }
}

/// A server that knows a token and a certificate of each role, and people with those that people may have.
struct Guarded {
    server: Fixture,
    place: Place,
    authority: Authority,
    tokens: Vec<NewToken>,
    certificates: Vec<Pair>,
}

fn subject(role: Role) -> String {
    format!("spiffe://example.org/{role}")
}

impl Guarded {
    fn at(place: Place) -> Self {
        let settings = match place {
            Place::Tcp => String::new(),
            Place::Unix => "http = 'unix:DIR/http.sock'\nresp = 'unix:DIR/resp.sock'\n\
                            admin = 'unix:DIR/admin.sock'\n"
                .to_owned(),
            Place::Tls => format!("{TLS}tls_client_ca = 'DIR/ca.pem'\nadmin = '127.0.0.1:0'\n"),
        };
        let settings = format!("{settings}credentials = 'DIR/credentials.toml'");
        let mut server = Fixture::prepare(SHOP, &settings);
        let authority = Authority::new("authority");
        authority.sign(&["localhost"]).write(&server);
        std::fs::write(server.path("ca.pem"), &authority.pem).unwrap();
        let mut text = String::new();
        let (mut tokens, mut certificates) = (Vec::new(), Vec::new());
        for role in Role::ALL {
            let token = NewToken::generate().unwrap();
            let name = Proof::Bearer.name(role).parse().unwrap();
            text += &token.entry(name, vec![role], None).unwrap();
            tokens.push(token);
            let (name, san) = (Proof::Certificate.name(role), subject(role));
            text +=
                &format!("[[certificates]]\nname = '{name}'\nsan = '{san}'\nroles = ['{role}']\n");
            certificates.push(authority.sign(&[&subject(role)]));
        }
        for role in OF_PEOPLE {
            let name = Proof::Password.name(role).parse().unwrap();
            text += &password_entry(name, PASSWORD, vec![role], None).unwrap();
        }
        std::fs::write(server.path("credentials.toml"), text).unwrap();
        server.start().unwrap();
        Self {
            server,
            place,
            authority,
            tokens,
            certificates,
        }
    }

    fn token(&self, role: Role) -> &str {
        let at = Role::ALL.iter().position(|of| *of == role).unwrap();
        self.tokens[at].text()
    }

    /// The certificate of this role, if it is the proof.
    fn certificate(&self, proof: Proof, role: Role) -> Option<&Pair> {
        let at = Role::ALL.iter().position(|of| *of == role).unwrap();
        (proof == Proof::Certificate).then(|| &self.certificates[at])
    }

    /// The header lines, or the command, that show this proof of this role.
    fn shown(&self, proof: Proof, role: Role) -> String {
        let (name, token) = (proof.name(role), self.token(role));
        match proof {
            Proof::Nothing | Proof::Certificate => String::new(),
            Proof::Bearer => format!("Authorization: Bearer {token}\r\n"),
            Proof::Field => format!("X-Quell-Token: {token}\r\n"),
            Proof::Password => {
                let login = STANDARD.encode(format!("{name}:{PASSWORD}"));
                format!("Authorization: Basic {login}\r\n")
            }
            Proof::Auth => format!("AUTH {token}\r\n"),
            Proof::AuthAs => format!("AUTH {name} {token}\r\n"),
            Proof::Hello => format!("HELLO 3 AUTH {name} {token}\r\n"),
        }
    }

    /// Sends `bytes` to a listener as a client with this certificate, and reads to the end.
    fn exchange(&self, listener: &Address, client: Option<&Pair>, bytes: &str) -> Vec<u8> {
        match (listener, self.place) {
            (Address::Unix(path), _) => send_to_socket(path.to_path_buf(), bytes),
            (Address::Tcp(address), Place::Tls) => {
                self.authority.exchange(*address, client, bytes.as_bytes())
            }
            (Address::Tcp(address), _) => send(*address, bytes.as_bytes()),
        }
    }

    fn request(
        &self,
        (method, target, body, needed): (&str, &str, &str, &[Role]),
        (proof, role): (Proof, Role),
    ) -> Answer {
        let kind = match body.is_empty() {
            true => "",
            false => "Content-Type: application/json\r\n",
        };
        let (length, shown) = (body.len(), self.shown(proof, role));
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Length: {length}\r\n{kind}{shown}\r\n{body}"
        );
        let server = self.server.server();
        // Where the route is, if there are two.
        let listener = match needed {
            [Role::Ask] | [] => server.http_address(),
            _ => server.admin_address().or(server.http_address()),
        };
        let client = self.certificate(proof, role);
        Answer::read(&self.exchange(listener.unwrap(), client, &request))
    }

    /// Asks for every route.
    fn walk_routes(&self, proof: Proof) {
        for route @ (method, target, _, needed) in ROUTES {
            for role in proof.roles() {
                let answer = self.request(route, (proof, *role));
                let what = format!("{:?}: {method} {target} by {proof:?} of {role}", self.place);
                let has_no_proof =
                    proof == Proof::Nothing || proof == Proof::Password && needed == [Role::Ask];
                match needed {
                    [] => assert_eq!(answer.status, 200, "{what}: {answer:?}"),
                    _ if has_no_proof => assert_eq!(answer.status, 401, "{what}: {answer:?}"),
                    all if all.contains(role) => {
                        assert!(![401, 403].contains(&answer.status), "{what}: {answer:?}");
                    }
                    [needed, ..] => {
                        let (noun, name) = (proof.noun(), proof.name(*role));
                        let told = format!("the {noun} `{name}` does not have the role `{needed}`");
                        assert!(answer.body.contains(&told), "{what}: {answer:?}");
                        answer.assert_problem(403, &told);
                    }
                }
            }
        }
    }

    /// Sends every command.
    fn walk_commands(&self, proof: Proof) {
        let listener = self.server.server().resp_address().unwrap();
        for (command, need) in COMMANDS {
            for role in proof.roles() {
                let commands = format!("{}{command}\r\n", self.shown(proof, *role));
                let client = self.certificate(proof, *role);
                let reply = self.exchange(listener, client, &commands);
                let reply = String::from_utf8(reply).unwrap();
                let has = |error: &str| reply.lines().any(|line| line.starts_with(error));
                let what = format!(
                    "{:?}: {command} by {proof:?} of {role}: {reply}",
                    self.place
                );
                let is_stranger = proof == Proof::Nothing;
                assert_eq!(
                    has("-NOAUTH"),
                    is_stranger && need != Need::Nothing,
                    "{what}"
                );
                let is_anothers = matches!(need, Need::Role(needed) if !needed.contains(role));
                assert_eq!(has("-NOPERM"), !is_stranger && is_anothers, "{what}");
            }
        }
    }
}

fn send_to_socket(path: PathBuf, bytes: &str) -> Vec<u8> {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(bytes.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    reply
}

#[test]
fn tokens_in_a_field_and_passwords_have_their_roles_on_every_route() {
    let guarded = Guarded::at(Place::Tcp);
    for proof in [Proof::Field, Proof::Password] {
        guarded.walk_routes(proof);
    }
}

#[test]
fn each_form_of_auth_has_its_roles_with_every_command() {
    let guarded = Guarded::at(Place::Tcp);
    for proof in [Proof::Auth, Proof::AuthAs, Proof::Hello] {
        guarded.walk_commands(proof);
    }
}

#[test]
fn certificates_have_their_roles_on_every_route_and_with_every_command() {
    let guarded = Guarded::at(Place::Tls);
    for proof in [Proof::Certificate, Proof::Nothing] {
        guarded.walk_routes(proof);
        guarded.walk_commands(proof);
    }
}

/// A caller that reaches a Unix socket has no role yet.
#[test]
fn roles_count_behind_unix_sockets() {
    let guarded = Guarded::at(Place::Unix);
    for proof in [Proof::Nothing, Proof::Bearer, Proof::Field, Proof::Password] {
        guarded.walk_routes(proof);
    }
    for proof in [Proof::Nothing, Proof::Auth, Proof::AuthAs, Proof::Hello] {
        guarded.walk_commands(proof);
    }
}
