//! TLS of the listeners: client libraries, with tokens and with certificates.

use quell_testkit::certificates::{CLIENT, Certificates};

use crate::clients::{ioredis_eval, redis_py_eval};
use crate::files::{Folder, window_rules};
use crate::process::{quell, run};
use crate::server::{Server, tls_flags};

/// By a token, and by a certificate in its place. curl, redis-cli and nginx do it on the page of TLS.
#[test]
fn libraries_of_redis_ask_over_tls() {
    let certificates = Certificates::new();
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", "9/h"));
    let entry = format!(
        "[[certificates]]\nname = \"of-checkout\"\nsan = \"{CLIENT}\"\nroles = [\"ask\"]\n\n"
    );
    let credentials = folder.write("credentials.toml", &entry);
    let mut new = quell(&["token", "new", "checkout", "--role", "ask"]);
    let token = run(new.args(["--append", &credentials])).expect_success();
    let token = token.trim();
    let [authority, certificate, key] =
        ["ca.pem", "client.pem", "client.key"].map(|name| certificates.path(name));
    let mut serve = quell(&["serve", "--http", "off", "--resp", "127.0.0.1:0"]);
    serve.args(["--rules", &rules, "--credentials", &credentials]);
    serve.args(["--tls-client-ca", &authority]);
    let server = Server::spawn(serve.args(tls_flags(&certificates)));
    let port = server.resp;
    let python = format!(
        "import redis\n\
         tls = dict(host='localhost', port={port}, ssl=True, ssl_ca_certs='{authority}')\n\
         shown = dict(ssl_certfile='{certificate}', ssl_keyfile='{key}')\n\
         for protocol in (2, 3):\n    \
             for auth in (dict(username='checkout', password='{token}'), shown):\n        \
                 r = redis.Redis(protocol=protocol, **tls, **auth)\n        \
                 pipe = r.pipeline(transaction=False)\n        \
                 for _ in range(500):\n            \
                     pipe.execute_command('CL.THROTTLE', 'py', 5000, 1, 60)\n        \
                 assert all(reply[0] == 0 for reply in pipe.execute())\n    \
             try:\n        \
                 redis.Redis(protocol=protocol, **tls).execute_command('PING')\n        \
                 raise SystemExit('not refused')\n    \
             except redis.exceptions.AuthenticationError:\n        \
                 pass\n"
    );
    run(&mut redis_py_eval(&python)).expect_success();
    let node = format!(
        "import Redis from 'ioredis';\n\
         import {{ readFileSync }} from 'node:fs';\n\
         const ca = readFileSync('{authority}');\n\
         const shown = {{ ca, cert: readFileSync('{certificate}'), key: readFileSync('{key}') }};\n\
         const at = {{ host: 'localhost', port: {port} }};\n\
         for (const more of [{{ username: 'checkout', password: '{token}', tls: {{ ca }} }}, \
                             {{ tls: shown }}]) {{\n\
           const client = new Redis({{ ...at, ...more }});\n\
           const calls = Array.from({{ length: 500 }}, \
             () => client.call('CL.THROTTLE', 'node', 5000, 1, 60));\n\
           const replies = await Promise.all(calls);\n\
           if (replies.some((reply) => reply[0] !== 0)) process.exit(1);\n\
           await client.quit();\n\
         }}\n"
    );
    run(&mut ioredis_eval(&node)).expect_success();
    server.stop();
}
