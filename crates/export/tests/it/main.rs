//! NBD, admin and the server, as clients and operators meet them.

mod certificates;
mod nbd_client_replies;
mod nbd_clients;
mod nbd_connection;
mod nbd_handshake;
mod nbd_meta_context;
mod nbd_servers;
mod nbd_starttls;
mod nbd_tls;
mod nbd_transmission;
mod nbd_uri;
mod rig;
mod server;
