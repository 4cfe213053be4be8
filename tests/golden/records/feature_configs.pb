


f_goods_id
table2

f_page
table2
$
f_user_ctx_network
table1

	f_user_id
table1
#
f_user_id-f_page
table3 

'
f_user_test10_array
table1l
biasd

	f_user_id

f_user_ctx_network

f_user_test10_arrayP


f_goods_id


f_page

6
iffm.


f_goods_id	

f_page	



*
seq#

f_user_id-f_pagePX



d
uffm\

	f_user_id	

f_user_ctx_network	

f_user_test10_array	P





^
	user_onlyQ

	f_user_id	

f_user_ctx_network	

f_user_test10_array	P

u
vecn

	f_user_id

f_user_ctx_network

f_user_test10_arrayP


f_goods_id

f_page

