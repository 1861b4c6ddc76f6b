-- A person's file as version 2 wrote it. It is never changed: every later version must still open it.
BEGIN TRANSACTION;
CREATE TABLE chats (
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL,
        titled INTEGER NOT NULL DEFAULT 0,  -- by the person, not from the first words
        created REAL NOT NULL,
        updated REAL NOT NULL,
        model TEXT,
        system TEXT,
        head TEXT,  -- the leaf of the current path
        deleted REAL
    ) STRICT;
INSERT INTO chats VALUES('c-tree','Grüße aus Lissabon',1,1764000000.5,1764000300.25,'tiny','be brief','m-a3',NULL);
INSERT INTO chats VALUES('c-cut','Tell me a story',0,1764000100.0,1764000200.0,'tiny',NULL,'m-s2',NULL);
INSERT INTO chats VALUES('c-gone','Deleted',0,1764000100.0,1764000150.0,'tiny',NULL,'m-g1',4000000000.0);
CREATE TABLE growth (
        n INTEGER PRIMARY KEY,
        message TEXT NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
        text TEXT NOT NULL,
        think TEXT NOT NULL,
        tokens BLOB NOT NULL
    ) STRICT;
INSERT INTO growth VALUES(1,'m-s2','Once upon','',X'0A000000');
INSERT INTO growth VALUES(2,'m-s2',' a ti','',X'0B000000');
INSERT INTO growth VALUES(3,'m-s2','me','',X'0C000000');
CREATE TABLE messages (
        n INTEGER PRIMARY KEY,  -- the order in which they were said
        id TEXT NOT NULL UNIQUE,
        chat TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
        parent TEXT REFERENCES messages (id) DEFERRABLE INITIALLY DEFERRED,
        role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
        text TEXT NOT NULL,
        think TEXT NOT NULL DEFAULT '',
        state TEXT NOT NULL CHECK (state IN ('growing', 'done', 'stopped', 'length', 'error')),
        detail TEXT NOT NULL DEFAULT '',
        model TEXT,
        -- An answer's prompt is the first `kept` ids of prompt and answer of the message `base`, then `prompt`.
        base TEXT,
        kept INTEGER NOT NULL DEFAULT 0,
        prompt BLOB,  -- token ids, 4 bytes each, little-endian
        tokens BLOB,
        usage TEXT,
        timing TEXT,
        created REAL NOT NULL
    ) STRICT;
INSERT INTO messages VALUES(1,'m-q1','c-tree',NULL,'user','Where do I find pastéis de nata?','','done','',NULL,NULL,0,NULL,NULL,NULL,NULL,1764000001.0);
INSERT INTO messages VALUES(2,'m-a1','c-tree','m-q1','assistant','In Belém: a pastel de nata 🥧 for everybody.','hm, Lisbon','done','','tiny',NULL,0,X'010000000200000003000000',X'0400000005000000',NULL,NULL,1764000002.0);
INSERT INTO messages VALUES(3,'m-q2','c-tree','m-a1','user','And another pastel?','','done','',NULL,NULL,0,NULL,NULL,NULL,NULL,1764000003.0);
INSERT INTO messages VALUES(4,'m-a2','c-tree','m-q2','assistant','Try the market.','','length','','tiny',NULL,0,X'010000000200000003000000',X'0400000005000000',NULL,NULL,1764000004.0);
INSERT INTO messages VALUES(5,'m-q3','c-tree','m-a1','user','It''s "quoted"; --
new line','','done','',NULL,NULL,0,NULL,NULL,NULL,NULL,1764000005.0);
INSERT INTO messages VALUES(6,'m-a3','c-tree','m-q3','assistant','日本語 too','','stopped','','tiny',NULL,0,X'010000000200000003000000',X'0400000005000000',NULL,NULL,1764000006.0);
INSERT INTO messages VALUES(7,'m-s1','c-cut',NULL,'user','Tell me a story','','done','',NULL,NULL,0,NULL,NULL,NULL,NULL,1764000007.0);
INSERT INTO messages VALUES(8,'m-s2','c-cut','m-s1','assistant','','','growing','','tiny',NULL,0,X'010000000200000003000000',NULL,NULL,NULL,1764000008.0);
INSERT INTO messages VALUES(9,'m-g1','c-gone',NULL,'user','forget this','','done','',NULL,NULL,0,NULL,NULL,NULL,NULL,1764000009.0);
CREATE TABLE turns (
        turn TEXT PRIMARY KEY,
        chat TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
        key TEXT NOT NULL,
        question TEXT,
        answer TEXT NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
        created REAL NOT NULL,
        UNIQUE (chat, key)
    ) STRICT;
INSERT INTO turns VALUES('t-old-1','c-tree','key-1','m-q1','m-a1',1764000001.0);
INSERT INTO turns VALUES('t-old-2','c-cut','key-2','m-s1','m-s2',1764000002.0);
CREATE TABLE drafts (
        chat TEXT PRIMARY KEY,  -- '' is the draft of no chat yet
        text TEXT NOT NULL,
        updated REAL NOT NULL
    ) STRICT;
INSERT INTO drafts VALUES('c-tree','half a thought',1764000400.0);
INSERT INTO drafts VALUES('','for no chat yet',1764000401.0);
CREATE INDEX chats_by_age ON chats (updated DESC, id DESC);
CREATE INDEX messages_by_chat ON messages (chat, n);
CREATE INDEX messages_by_parent ON messages (parent);
CREATE INDEX messages_growing ON messages (n) WHERE state = 'growing';
CREATE INDEX turns_by_answer ON turns (answer);
CREATE INDEX growth_by_message ON growth (message, n);
CREATE VIRTUAL TABLE message_words USING fts5 (
        text, content = 'messages', content_rowid = 'n', tokenize = 'unicode61 remove_diacritics 2'
    );
CREATE VIRTUAL TABLE chat_words USING fts5 (title, chat UNINDEXED, tokenize = 'unicode61 remove_diacritics 2');
INSERT INTO message_words (message_words) VALUES ('rebuild');
INSERT INTO chat_words (title, chat) VALUES('Grüße aus Lissabon','c-tree');
INSERT INTO chat_words (title, chat) VALUES('Tell me a story','c-cut');
INSERT INTO chat_words (title, chat) VALUES('Deleted','c-gone');
CREATE TRIGGER message_said AFTER INSERT ON messages BEGIN
        INSERT INTO message_words (rowid, text) VALUES (new.n, new.text);
    END;
CREATE TRIGGER message_grown AFTER UPDATE OF text ON messages WHEN old.text <> new.text BEGIN
        INSERT INTO message_words (message_words, rowid, text) VALUES ('delete', old.n, old.text);
        INSERT INTO message_words (rowid, text) VALUES (new.n, new.text);
    END;
CREATE TRIGGER message_gone AFTER DELETE ON messages BEGIN
        INSERT INTO message_words (message_words, rowid, text) VALUES ('delete', old.n, old.text);
    END;
CREATE TRIGGER chat_begun AFTER INSERT ON chats WHEN new.title <> '' BEGIN
        INSERT INTO chat_words (title, chat) VALUES (new.title, new.id);
    END;
CREATE TRIGGER chat_renamed AFTER UPDATE OF title ON chats WHEN old.title <> new.title BEGIN
        DELETE FROM chat_words WHERE chat = old.id;
        INSERT INTO chat_words (title, chat) SELECT new.title, new.id WHERE new.title <> '';
    END;
CREATE TRIGGER chat_gone AFTER DELETE ON chats BEGIN
        DELETE FROM chat_words WHERE chat = old.id;
        DELETE FROM drafts WHERE chat = old.id;
    END;
COMMIT;
PRAGMA user_version = 2;
