// Passes TCP connections on, so that a path can be cut by stopping or killing this.
//
//   forward PORT ADDRESS PORT
//
// Listens on 127.0.0.1. Each connection has a process of its own; all of them are in one group.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static struct sockaddr_in address(const char *host, const char *port) {
    struct sockaddr_in it = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    inet_pton(AF_INET, host, &it.sin_addr);
    return it;
}

static void pass(int from, int to) {
    static char bytes[1 << 18];
    ssize_t here = read(from, bytes, sizeof bytes);
    if (here <= 0) exit(0);
    for (ssize_t done = 0; done < here;) {
        ssize_t now = write(to, bytes + done, here - done);
        if (now <= 0) exit(0);
        done += now;
    }
}

int main(int count, char **words) {
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (count != 4) return 2;
    signal(SIGCHLD, SIG_IGN);
    setpgid(0, 0);
    struct sockaddr_in here = address("127.0.0.1", words[1]), there = address(words[2], words[3]);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 64)) {
        perror("forward");
        return 1;
    }
    for (;;) {
        int host = accept(listener, NULL, NULL);
        if (host < 0 || fork() > 0) {
            close(host);
            continue;
        }
        int server = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(server, (struct sockaddr *)&there, sizeof there)) return 1;
        setsockopt(host, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct pollfd both[] = {{host, POLLIN, 0}, {server, POLLIN, 0}};
        while (poll(both, 2, -1) > 0) {
            if (both[0].revents) pass(host, server);
            if (both[1].revents) pass(server, host);
        }
    }
}
